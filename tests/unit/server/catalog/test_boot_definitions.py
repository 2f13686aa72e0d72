"""Files of definitions that a member is to load at its start, and every error text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from brokerd.config import ConfigError
from brokerd.rpc.v1 import admin_pb2
from brokerd.server.catalog import boot_definitions
from brokerd.server.catalog.boot_definitions import Definitions


def write(path: Path, **sections: Any) -> Path:
    """Write a file of definitions."""
    path.write_text(json.dumps(sections))
    return path


def read(path: Path) -> Definitions:
    """Read what must be there."""
    found = boot_definitions.read(str(path))
    assert found is not None
    return found


def test_nothing_configured_is_nothing_to_load() -> None:
    assert boot_definitions.read("") is None


def test_a_folder_is_read_by_name_and_other_files_in_it_are_left(tmp_path: Path) -> None:
    write(tmp_path / "2.json", users=[{"name": "late", "tags": []}])
    write(tmp_path / "1.json", vhosts=[{"name": "early"}])
    (tmp_path / "notes.txt").write_text("no JSON")
    found = read(tmp_path)
    assert [item[0] for item in found.wanted] == ["vhost", "user"]
    assert found.has_users


def test_a_file_is_known_by_what_is_in_it(tmp_path: Path) -> None:
    first = read(write(tmp_path / "a.json", vhosts=[{"name": "x"}]))
    same = read(write(tmp_path / "b.json", vhosts=[{"name": "x"}]))
    other = read(write(tmp_path / "b.json", vhosts=[{"name": "y"}]))
    assert first.digest == same.digest != other.digest
    assert not first.has_users


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("{", "bad.json is not JSON"),
        ("\x00", "bad.json is not JSON"),
        ("[" * 100_000, "bad.json is not JSON"),
        ("[]", "bad.json: definitions are a JSON object"),
        ('{"queues": [{"name": "q"}]}', r"bad.json: queues\[0\]: 'durable' is missing"),
        (None, "cannot read .*bad.json: No such file"),
    ],
)
def test_a_broken_file_is_named_with_what_is_wrong(
    tmp_path: Path, content: str | None, expected: str
) -> None:
    file = tmp_path / "bad.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match=rf"definitions\.path: .*{expected}"):
        boot_definitions.read(str(file))


def test_a_folder_without_definitions_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no \*\.json in"):
        boot_definitions.read(str(tmp_path))


def test_more_than_memory_should_hold_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boot_definitions, "BYTES_MAX", 40)
    write(tmp_path / "1.json", vhosts=[{"name": "x"}])
    write(tmp_path / "2.json", vhosts=[{"name": "y"}])
    with pytest.raises(ConfigError, match="has more than 40 bytes"):
        boot_definitions.read(str(tmp_path))


def test_what_is_not_here_can_be_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    queue = {"name": "s", "vhost": "/", "durable": True, "auto_delete": False}
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps({"queues": [queue | {"arguments": {"x-queue-type": "stream"}}]}))
    kept = boot_definitions.read(str(file))
    assert kept is not None
    assert len(kept.wanted) == 1
    found = boot_definitions.read(str(file), skips_unsupported=True)
    assert found is not None
    assert found.wanted == ()
    assert "left out: queue 's'" in caplog.text


@pytest.mark.parametrize(
    ("name", "value", "is_missing"),
    [
        ("federation-upstream/east", {"ack-mode": "on-confirm"}, True),
        ("federation-upstream/east", {"uri": "amqp://east"}, False),
        ("shovel/s", {"src-uri": "amqp://a", "src-queue": "q"}, True),
        ("federation-upstream-set/all", {}, False),
        ("federation-upstream/east", "nonsense", False),
    ],
)
def test_an_upstream_that_was_exported_without_its_uri_is_known(
    name: str, value: object, is_missing: bool
) -> None:
    """The rest of the default backup is restored without it."""
    spec = json.dumps({"value": value})
    operation = admin_pb2.Operation(kind="parameter", vhost="/", name=name, spec=spec)
    assert boot_definitions.lacks_uri(operation) is is_missing
