"""Configuration from file, environment and flags, and every error text."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerd import config


def test_later_sources_win(tmp_path: Path) -> None:
    file = tmp_path / "brokerd.toml"
    file.write_text("[limits]\nframe_max = 8192\nheartbeat_s = 7\n[node]\nname = 'file'\n")
    made = config.load(
        file,
        {"BROKERD_LIMITS_HEARTBEAT_S": "9", "BROKERD_PEER_TLS_CERT_FILE": "c", "HOME": "/x"},
        {"node": {"name": "flag", "bind": None}},
    )
    assert (made.limits.frame_max, made.limits.heartbeat_s, made.node_name) == (8192, 9, "flag")
    assert made.peer_tls.cert_file == "c"


def test_an_offset_moves_every_port_but_leaves_what_is_off() -> None:
    made = config.load(None, {"BROKERD_LISTENERS_HTTP": "0"}, {"node": {"port_offset": 100}})
    assert (made.port("amqp"), made.port("http")) == (5772, 0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[limits]\nframe_max = 'x'\n", "limits.frame_max"),
        ("[limits]\nnonsense = 1\n", "limits.nonsense: Extra inputs are not permitted"),
        ("[nowhere]\n", "unknown section [nowhere]; there are auth, cluster"),
        ("limits = 3\n", "limits must be a section, [limits]"),
        ("= =", "is not TOML"),
    ],
)
def test_a_wrong_file_is_named_with_what_is_wrong(tmp_path: Path, text: str, expected: str) -> None:
    file = tmp_path / "brokerd.toml"
    file.write_text(text)
    with pytest.raises(config.ConfigError) as refused:
        config.load(file, {}, {})
    assert expected in str(refused.value)


def test_a_file_that_is_missing_or_no_text_is_said(tmp_path: Path) -> None:
    with pytest.raises(config.ConfigError, match=r"cannot read .*: No such file"):
        config.load(tmp_path / "none.toml", {}, {})
    file = tmp_path / "binary.toml"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(config.ConfigError, match="is not TOML"):
        config.load(file, {}, {})


def test_unknown_variables_are_refused_and_those_of_other_programs_passed_over() -> None:
    with pytest.raises(config.ConfigError, match="BROKERD_NOPE: no such setting"):
        config.load(None, {"BROKERD_NOPE": "1"}, {})
    config.load(None, {"BROKERD_ADDRESS": "x", "BROKERD_PASSWORD": "y"}, {})
