"""brokerctl without a member: options, output, commands of other parts."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from brokerd import extras
from brokerd.ctl import errors, main, output, quorum, settings
from brokerd.ctl.settings import Settings


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("127.0.0.1:15680", ["127.0.0.1:15680"]),
        ("broker", ["broker:5680"]),
        ("rabbit@broker", ["broker:5680"]),
        ("::1", ["[::1]:5680"]),
        ("[::1]", ["[::1]:5680"]),
        ("[::1]:5681", ["[::1]:5681"]),
        ("a:1, b ,", ["a:1", "b:5680"]),
        ("", []),
    ],
)
def test_addresses_are_completed(given: str, meant: list[str]) -> None:
    assert Settings(address=given).addresses() == meant


def test_node_names_of_erlang_find_their_member(monkeypatch: pytest.MonkeyPatch) -> None:
    """By BROKERD_NODES, else the host with the port of BROKERD_ADDRESS."""
    monkeypatch.setenv("BROKERD_NODES", "rabbit@a=10.0.0.1:5, rabbit@b = b:6,nonsense")
    monkeypatch.setenv("BROKERD_ADDRESS", "127.0.0.1:15680")
    assert Settings().addresses() == ["127.0.0.1:15680"]
    assert Settings(node="rabbit@a,rabbit@b").addresses() == ["10.0.0.1:5", "b:6"]
    assert Settings(node="rabbit@c").addresses() == ["c:15680"]
    assert Settings(node="rabbit@c:7").addresses() == ["c:7"]
    assert Settings(node="c").addresses() == ["c:5680"]
    assert Settings(node="rabbit@a").label == "rabbit@a"


def test_in_a_members_container_its_administrator_logs_in(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As the operator sets members up; an option or a variable for brokerctl says otherwise."""
    alone = Settings()
    assert (alone.address, alone.user, alone.password) == ("127.0.0.1:5680", "guest", "guest")
    assert alone.ca_file == ""
    password = tmp_path / "password"
    monkeypatch.setenv("BROKERD_AUTH_ADMIN_USER", "admin")
    monkeypatch.setenv("BROKERD_AUTH_ADMIN_PASSWORD_FILE", str(password))
    monkeypatch.setenv("BROKERD_TLS_CA_FILE", "ca.crt")
    assert Settings().ca_file == "", "the member serves no TLS"
    monkeypatch.setenv("BROKERD_TLS_CERT_FILE", "tls.crt")
    assert Settings().password == "guest", "not for whoever runs this"
    password.write_text("secret\n")
    beside = Settings()
    assert (beside.address, beside.user, beside.password) == ("localhost:5680", "admin", "secret")
    assert beside.ca_file == "ca.crt"
    monkeypatch.setenv("BROKERD_ADDRESS", "other:1")
    assert Settings(user="me", ca_file="other.crt").addresses() == ["other:1"]


@pytest.mark.parametrize(("given", "seconds"), [("5", 5.0), ("0", 0.0), ("infinity", 86_400.0)])
def test_time_outs_are_seconds_or_infinity(given: str, seconds: float) -> None:
    context = click.Context(main.brokerctl)
    settings._store_timeout(context, click.Option(["-t"]), given)
    assert context.ensure_object(Settings).timeout_s == seconds


@pytest.mark.parametrize("given", ["-1", "soon", "1e9", "nan"])
def test_other_time_outs_are_refused(given: str) -> None:
    with pytest.raises(click.UsageError, match="Invalid options"):
        settings._store_timeout(click.Context(main.brokerctl), click.Option(["-t"]), given)


def test_secrets_of_the_command_line_are_not_repeated(monkeypatch: Any, capsys: Any) -> None:
    """SEC-20."""
    monkeypatch.setattr("sys.argv", ["rabbitmqctl"])
    assert main.run(["--password", "hunter2", "--password=hunter3", "add_user"]) == 64
    shown = capsys.readouterr().err
    assert "hunter" not in shown
    assert "--password *** --password=***" in shown


def test_settings_do_not_show_the_password() -> None:
    """SEC-20."""
    assert "hunter2" not in repr(Settings(password="hunter2"))


@pytest.mark.parametrize("name", sorted(main.COMMANDS))
def test_every_command_has_help_and_the_common_options(name: str) -> None:
    answer = CliRunner().invoke(main.brokerctl, [name, "--help"])
    assert answer.exit_code == 0, answer.output
    assert answer.output.startswith("Usage: ")
    command = main.brokerctl.get_command(click.Context(main.brokerctl), name)
    assert command is not None
    assert command.help
    if not isinstance(command, click.Group):
        assert "--formatter" in answer.output


@pytest.mark.parametrize("words", [[], ["-n", "rabbit@a"], ["-q", "-p", "v"]])
def test_a_line_without_a_command_shows_all_commands_as_an_error(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The Java client's suite looks there for the commands that a server has."""
    assert main.run(words) == errors.EXIT_USAGE
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "set_topic_permissions" in shown.err


def test_options_behind_a_command_win_over_those_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Settings] = []

    @click.command(cls=settings.Command)
    def probe() -> None:
        seen.append(settings.current())

    monkeypatch.setattr(main, "_foreign", lambda: {"probe": _entry_point("a:b")})
    monkeypatch.setattr(main, "_load", lambda *_: probe)
    arguments = ["-p", "a", "--user", "u", "-q"]
    CliRunner().invoke(main.brokerctl, [*arguments, "probe", "-p", "b", "-s"])
    (found,) = seen
    assert (found.vhost, found.user, found.quiet, found.headers) == ("b", "u", True, False)


def test_a_password_file_is_read_without_its_line_end(tmp_path: Any) -> None:
    file = tmp_path / "password"
    file.write_text("secret\n")
    context = click.Context(main.brokerctl)
    settings._store_password(context, click.Option(["--x"]), file)
    assert context.ensure_object(Settings).password == "secret"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--password-file", "/dev/urandom", "status"],
        ["status", "--password-file", "/dev/urandom"],
        ["telemetry", "run", "--pull", "h:1", "--out", "o", "--password-file", "/dev/urandom"],
    ],
)
def test_a_password_file_that_holds_none_is_all_that_is_said(
    arguments: list[str], monkeypatch: Any, tmp_path: Path, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main.run(arguments) == errors.EXIT_IO
    assert capsys.readouterr().err == (
        "Error:\n--password-file: cannot use /dev/urandom: it holds more than 4096 bytes\n"
    )


def test_a_wrong_command_line_is_answered_with_the_error_and_where_help_is(
    monkeypatch: Any, capsys: Any
) -> None:
    """Called as rabbitmqctl it says what rabbitmqctl says."""
    assert main.run(["list_queues", "--xyz"]) == errors.EXIT_USAGE
    assert capsys.readouterr().err.splitlines() == [
        "Error (argument validation): Invalid options for this command:",
        "--xyz : ",
        "See 'brokerctl list_queues --help'.",
    ]
    assert main.run(["set_disk_free_limit", "much"]) == errors.EXIT_DATA
    assert capsys.readouterr().err.splitlines()[1:] == [
        "See 'brokerctl set_disk_free_limit --help'."
    ]
    monkeypatch.setattr("sys.argv", ["/usr/bin/rabbitmqctl"])
    assert main.run(["--password", "hunter2", "list_queues", "--xyz"]) == errors.EXIT_USAGE
    assert capsys.readouterr().err.splitlines() == [
        "Error (argument validation): Invalid options for this command:",
        "--xyz : ",
        "Arguments given:",
        "\t--password *** list_queues --xyz",
        "",
        "Usage",
        "",
        "rabbitmqctl list_queues [OPTIONS] [COLUMN]...",
    ]


ROWS = [{"name": "a\tb\x1b[2J", "n": 1, "on": True, "list": ["x", "y"], "deep": {"k": [1]}}]
COLUMNS = ("name", "n", "on", "list", "deep", "none")


def test_tsv_keeps_one_row_per_line_and_sends_nothing_to_the_terminal(capsys: Any) -> None:
    output.rows(Settings(formatter="tsv"), COLUMNS, ROWS)
    assert capsys.readouterr().out.splitlines() == [
        "name\tn\ton\tlist\tdeep\tnone",
        'a\\tb\\x1b[2J\t1\ttrue\t[x, y]\t{"k":[1]}\t',
    ]
    output.rows(Settings(formatter="table"), COLUMNS, ROWS)
    assert "\x1b[2J" not in capsys.readouterr().out


def test_an_empty_listing_looks_as_rabbitmqctl_has_it(capsys: Any) -> None:
    """What is streamed prints nothing; what is collected first prints an empty line."""
    shown = {}
    for formatter in ("table", "json", "csv", "erlang"):
        for streams in (True, False):
            output.rows(Settings(formatter=formatter), ("a",), [], streams=streams)
            shown[formatter, streams] = capsys.readouterr().out
    assert shown == {
        ("table", True): "",
        ("table", False): "\n",
        ("json", True): "[\n]\n",
        ("json", False): "[]\n",
        ("csv", True): "",
        ("csv", False): "\n\n\n",
        ("erlang", True): "[]\n",
        ("erlang", False): "[]\n",
    }


def test_a_person_at_a_terminal_gets_a_table(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    output.rows(Settings(), COLUMNS, ROWS)
    shown = capsys.readouterr().out
    assert "name" in shown
    assert "\t" not in shown
    assert "\x1b[2J" not in shown
    # Called as rabbitmqctl, scripts are expected, whatever stdout is.
    output.rows(Settings(stands_in=True), ("n",), ROWS)
    assert capsys.readouterr().out == "n\n1\n"


def test_json_keeps_values_as_they_are_and_only_the_columns_asked_for(capsys: Any) -> None:
    output.rows(Settings(formatter="json"), ("n", "deep"), ROWS)
    assert json.loads(capsys.readouterr().out) == [{"n": 1, "deep": {"k": [1]}}]


def _entry_point(value: str) -> importlib.metadata.EntryPoint:
    return importlib.metadata.EntryPoint("up", value, main.ENTRY_POINTS)


def test_a_part_that_is_not_installed_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    point = _entry_point("brokerd_operator.no_such_module:up")
    monkeypatch.setattr(main, "_foreign", lambda: {"up": point})
    assert main.run(["up"]) == errors.EXIT_UNAVAILABLE
    assert extras.how_to_install("operator") in capsys.readouterr().err
    # The others still work, and help names it without importing it.
    assert main.run(["--help"]) == errors.EXIT_OK
    assert "\n  up " in capsys.readouterr().out


def test_a_command_of_another_distribution_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    point = _entry_point("brokerd.ctl.members:ping")
    monkeypatch.setattr(main, "_foreign", lambda: {"theirs": point})
    assert main.run(["theirs", "--help"]) == errors.EXIT_OK
    assert "Ask a member" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "stands_in"),
    [("rabbitmqctl", True), ("/usr/bin/rabbitmq-queues", True), ("brokerctl", False)],
)
def test_called_by_the_names_of_rabbitmqs_tools_it_stands_in_for_them(
    name: str, stands_in: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", [name])
    assert settings.is_stand_in() is stands_in


@pytest.mark.parametrize("node", ["n1", "rabbit@n1"])
def test_members_are_named_as_they_are_or_as_erlang_names_nodes(node: str) -> None:
    argument = click.Argument(["node"])
    assert quorum._member(click.Context(main.brokerctl), argument, node) == "n1"
    assert quorum._member(click.Context(main.brokerctl), argument, None) is None
