"""To whom a data directory belongs, and that incarnations rise."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from brokerd import config
from brokerd.config import ConfigError
from brokerd.server.members import cluster_file, identity

NOW_MS = 1_800_000_000_000


def test_incarnations_rise_even_if_the_clock_goes_back(tmp_path: Path) -> None:
    first = identity.claim(tmp_path, "b0", NOW_MS)
    second = identity.claim(tmp_path, "b0", NOW_MS - 60_000)
    third = identity.claim(tmp_path, "b0", NOW_MS + 60_000)
    assert first < second < third < 1 << 63


def test_a_directory_of_the_first_release_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / "node.json").write_text(json.dumps({"name": "b0", "format": 1}))
    assert identity.claim(tmp_path, "b0", NOW_MS) >= NOW_MS << 20


def test_another_members_directory_is_refused_with_both_names(tmp_path: Path) -> None:
    identity.claim(tmp_path, "b0", NOW_MS)
    with pytest.raises(ConfigError, match="belongs to the member 'b0', not to 'b1'"):
        identity.claim(tmp_path, "b1", NOW_MS)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "{}"])
def test_a_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "node.json").write_text(text)
    with pytest.raises(ConfigError, match=r"node\.json is damaged"):
        identity.claim(tmp_path, "b0", NOW_MS)


def test_a_later_format_is_refused_and_the_file_stays(tmp_path: Path) -> None:
    text = json.dumps({"name": "b0", "format": 2, "incarnation": 7})
    (tmp_path / "node.json").write_text(text)
    with pytest.raises(ConfigError, match=r"node\.json: format version 2; this build reads 1\."):
        identity.claim(tmp_path, "b0", NOW_MS)
    assert (tmp_path / "node.json").read_text() == text


def test_a_later_format_of_what_is_known_of_the_cluster_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text(json.dumps({"cluster_uid": "c", "format": 2}))
    with pytest.raises(ConfigError, match=r"cluster\.json: format version 2; this build reads 1\."):
        cluster_file.load(tmp_path)


def test_a_member_that_was_here_starts_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = identity.claim(tmp_path, "b0", NOW_MS)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert identity.claim(tmp_path, "b0", NOW_MS + 1) > first
    assert [file.name for file in tmp_path.iterdir()] == ["node.json"]
    with pytest.raises(ConfigError, match="cannot use the data directory"):
        identity.claim(tmp_path / "new", "b0", NOW_MS)


def made(data_dir: str, name: str = "", members: str = "") -> config.BrokerConfig:
    """Return a member's configuration."""
    flags = {"node": {"data_dir": data_dir, "name": name}, "cluster": {"members": members}}
    return config.load(None, {}, flags)


def test_a_lone_member_keeps_the_name_of_its_directory_on_another_host(tmp_path: Path) -> None:
    """A container that is made anew has another host name."""
    identity.claim(tmp_path, "brokerd@before", NOW_MS)
    found = identity.named(made(str(tmp_path)))
    assert found.node_name == "brokerd@before"
    assert found.data_dir == tmp_path


def test_a_name_that_was_given_and_that_of_a_cluster_are_not_replaced(tmp_path: Path) -> None:
    identity.claim(tmp_path, "before", NOW_MS)
    for given in (made(str(tmp_path), "now"), made(str(tmp_path), "", "a=h:1"), made("")):
        assert identity.named(given) is given


@pytest.mark.parametrize("content", [None, "{", "[]", "{}", '{"name": 3}'])
def test_a_directory_that_says_no_name_gives_none(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / identity.FILE).write_text(content)
    given = made(str(tmp_path))
    assert identity.named(given) is given
