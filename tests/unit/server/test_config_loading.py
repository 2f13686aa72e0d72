"""Configuration from file, environment and flags, and every error text."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerd import config
from brokerd.core import profiles


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


def test_a_lone_members_peer_port_is_on_loopback() -> None:
    others = {"cluster": {"members": "a=h:1"}}
    assert config.load(None, {}, {}).peer_host == "127.0.0.1"
    assert config.load(None, {}, others).peer_host == "[::]"
    assert config.load(None, {}, {"node": {"bind": "10.0.0.1"}, **others}).peer_host == "10.0.0.1"


@pytest.mark.parametrize(
    "name", ["a/../../b", "/b", "..", ".", "a b", "a,b", "a=b", "a\n", "n" * 201]
)
def test_a_name_that_is_no_folder_of_its_own_is_refused(name: str) -> None:
    """The name of a member is a part of its path: it must not lead elsewhere."""
    with pytest.raises(config.ConfigError, match=r"node\.name: '.*' is no member name: use one"):
        config.load(None, {}, {"node": {"name": name}})


@pytest.mark.parametrize("name", ["brokerd@host", "orders-0", "a.b:1", "größe", "n" * 200])
def test_names_that_hosts_and_pods_have_are_taken(name: str) -> None:
    assert config.load(None, {}, {"node": {"name": name}}).node_name == name


@pytest.mark.parametrize(("section", "key"), [("memory", "high_watermark"), ("disk", "free_limit")])
def test_a_quantity_that_cannot_be_read_is_refused(section: str, key: str) -> None:
    """Falling back to the default would show under load only."""
    expected = rf"{section}\.{key}: 'lots' is neither a fraction \(0.6\) nor a number of bytes"
    with pytest.raises(config.ConfigError, match=expected):
        config.load(None, {}, {section: {key: "lots"}})
    with pytest.raises(config.ConfigError, match=r"total_override: not a number of bytes: 'lots'"):
        config.load(None, {}, {"memory": {"total_override": "lots"}})
    for value in ("", "0.5", "2GiB", "1048576KiB"):
        assert config.load(None, {}, {section: {key: value}})


def test_an_offset_beyond_the_last_port_is_refused_with_the_highest_that_goes() -> None:
    with pytest.raises(
        config.ConfigError, match=r"http \(15692\) beyond port 65535: use at most 49843"
    ):
        config.load(None, {}, {"node": {"port_offset": 60_000}})
    off = {"BROKERD_LISTENERS_HTTP": "0", "BROKERD_LISTENERS_MANAGEMENT": "0"}
    off["BROKERD_LISTENERS_MANAGEMENT_TLS"] = "0"
    assert config.load(None, off, {"node": {"port_offset": 59_000}}).port("http") == 0
    assert config.load(None, {}, {"node": {"port_offset": 49_843}}).port("http") == 65_535


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[limits]\nframe_max = 'x'\n", "limits.frame_max"),
        ("[limits]\nnonsense = 1\n", "unknown setting limits.nonsense; [limits] has connections, "),
        ("[limits]\nframemax = 1\n", "limits.framemax; did you mean limits.frame_max?"),
        ("[limit]\nframe_max = 1\n", "unknown section [limit]; did you mean [limits]?"),
        ("load_definitions = '/x'\n", "load_definitions; did you mean definitions.path?"),
        ("[listeners]\namqp = 'many'\n", "listeners.amqp: must be a whole number from 0 to 65535"),
        ("[auth]\nadmin_password = 12345\n", "auth.admin_password: must be a text, is something"),
        ("[nowhere]\n", "unknown section [nowhere]; there are audit, auth"),
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
    with pytest.raises(config.ConfigError, match="BROKERD_NOPE: unknown setting; names are"):
        config.load(None, {"BROKERD_NOPE": "1"}, {})
    config.load(None, {"BROKERD_ADDRESS": "x", "BROKERD_PASSWORD": "y"}, {})


def test_single_switches_come_from_the_file_and_the_environment(tmp_path: Path) -> None:
    """R-VER-2: in a file dotted, quoted or not; a variable per switch wins over the file."""
    file = tmp_path / "brokerd.toml"
    file.write_text(
        '[compat]\nprofile = "rabbitmq-3.10"\n[compat.switches]\n'
        'dlx.strip_cc_on_rk = false\n"dlx.emit_last_death" = true\nqos.global = "deny"\n'
    )
    made = config.load(
        file,
        {"BROKERD_COMPAT_DLX_STRIP_CC_ON_RK": "true", "BROKERD_COMPAT_QUEUE_AE": "on"},
        {},
    )
    chosen = profiles.configured(made.compat.profile, made.compat.switches)
    assert chosen.dlx_strip_cc_on_rk
    assert chosen.dlx_emit_last_death
    assert chosen.qos_global == "deny"
    assert chosen.queue_ae


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"BROKERD_COMPAT_PROFILE": "rabbitmq-9"}, "unknown compat profile 'rabbitmq-9'; known:"),
        ({"BROKERD_COMPAT_NO_SUCH": "1"}, "unknown compat switch 'no_such'; known:"),
        ({"BROKERD_COMPAT_QOS_GLOBAL": "some"}, "'qos.global' is 'some'; allowed: deny, allow"),
        ({"BROKERD_COMPAT_SWITCHES": "x"}, "BROKERD_COMPAT_SWITCHES: must be a table, is 'x'"),
        ({"BROKERD_COMPAT_PROFIL": "x"}, "did you mean BROKERD_COMPAT_PROFILE?"),
    ],
)
def test_an_unknown_profile_or_switch_ends_the_start_with_a_sentence(
    environ: dict[str, str], expected: str
) -> None:
    with pytest.raises(config.ConfigError) as refused:
        config.load(None, environ, {})
    assert expected in str(refused.value)


def test_an_optional_setting_of_a_later_release_changes_nothing_and_is_named() -> None:
    given = {
        "OPTIONAL_BROKERD_LIMITS_HEARTBEAT_S": "9",
        "OPTIONAL_BROKERD_LIMITS_OF_TOMORROW": "1",
        "OPTIONAL_BROKERD_TOMORROW_KEY": "1",
        "OPTIONAL_OTHER": "1",
    }
    made = config.load(None, given, {})
    assert made.limits.heartbeat_s == 9
    assert config.unknown(given) == [
        "OPTIONAL_BROKERD_LIMITS_OF_TOMORROW",
        "OPTIONAL_BROKERD_TOMORROW_KEY",
    ]


def test_an_optional_setting_gives_way_to_a_plain_one_and_is_checked_as_one() -> None:
    name = "BROKERD_PEER_TLS_CERT_FILE"
    for given in ({name: "a", f"OPTIONAL_{name}": "b"}, {f"OPTIONAL_{name}": "b", name: "a"}):
        assert config.load(None, given, {}).peer_tls.cert_file == "a"
    with pytest.raises(config.ConfigError, match="OPTIONAL_BROKERD_LIMITS_HEARTBEAT_S: must"):
        config.load(None, {"OPTIONAL_BROKERD_LIMITS_HEARTBEAT_S": "often"}, {})


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("MEMROY_HIGH_WATERMARK", "MEMORY_HIGH_WATERMARK"),
        ("MEMROY__HIGH_WATERMARK", "MEMORY_HIGH_WATERMARK"),
        ("MEMORY__HIGH_WATERMARK", "MEMORY_HIGH_WATERMARK"),
        ("LISTENERS_AMPQ", "LISTENERS_AMQP"),
        ("AMQP_FRAME_MAX", "LIMITS_FRAME_MAX"),
        ("FRAME_MAX", "LIMITS_FRAME_MAX"),
        ("PEER_TLS_CERTFILE", "PEER_TLS_CERT_FILE"),
        ("LOAD_DEFINITIONS", "DEFINITIONS_PATH"),
        ("DEFAULT_USER", "AUTH_ADMIN_USER"),
        ("NODE_FOO", ""),
    ],
)
def test_a_misspelt_variable_comes_with_what_may_have_been_meant(name: str, meant: str) -> None:
    with pytest.raises(config.ConfigError) as refused:
        config.load(None, {f"BROKERD_{name}": "1"}, {})
    expected = f"did you mean BROKERD_{meant}?" if meant else "names are BROKERD_<SECTION>_<KEY>"
    assert f"BROKERD_{name}: unknown setting; {expected}" in str(refused.value)


def test_all_that_is_wrong_is_said_at_once_a_line_each(tmp_path: Path) -> None:
    """In the words of who gave it: a variable, a key of the file, a flag; what is expected."""
    file = tmp_path / "brokerd.toml"
    file.write_text("[queues]\nquorum_group_size = 12\n[nonsense]\n")
    given = {
        "BROKERD_LOG_LEVEL": "loud",
        "BROKERD_AUTH_CREATE_GUEST": "perhaps",
        "BROKERD_LIMITS_HEARTBEAT_S": "often",
        "BROKERD_NODE_HOST": "a b",
        "BROKERD_NODE_NAM": "x" * 1000,
    }
    with pytest.raises(config.ConfigError) as refused:
        config.load(file, given, {"node": {"port_offset": -1}})
    first, *lines = str(refused.value).splitlines()
    assert first == "configuration cannot be used:"
    assert {line.strip() for line in lines} >= {
        f"{file}: queues.quorum_group_size: must be a whole number from 1 to 9, is 12",
        "BROKERD_LOG_LEVEL: must be one of debug, info, warning, error, is 'loud'",
        "BROKERD_AUTH_CREATE_GUEST: must be true or false, is 'perhaps'",
        "BROKERD_LIMITS_HEARTBEAT_S: must be a whole number of at least 0, is 'often'",
        "BROKERD_NODE_HOST: must be a text of at most 253 characters, without spaces, is 'a b'",
        "BROKERD_NODE_NAM: unknown setting; did you mean BROKERD_NODE_NAME?",
        "node.port_offset: must be a whole number from 0 to 60000, is -1",
    }
    assert len(lines) == 8


def test_variables_that_kubernetes_sets_for_a_service_of_our_name_are_passed_over() -> None:
    """A Service "brokerd" in the namespace is enough for them."""
    names = ("SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_AMQP", "PORT", "PORT_5672_TCP_ADDR")
    config.load(None, {f"BROKERD_{name}": "tcp://10.0.0.1:5672" for name in names}, {})
