"""brokerctl in the place of rabbitmqctl: what scripts and test suites of RabbitMQ do with it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.integration.management.test_brokerctl import Ctl
from tests.integration.members import REPOSITORY, Member, cluster, eventually
from tests.ports import free_ports

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    folder = tmp_path_factory.mktemp("scripts")
    with cluster(folder, 1, BROKERD_AUTH_SCRYPT_LOG2_N="10") as members:
        yield members[0]


@pytest.fixture(scope="module")
def ctl(member: Member) -> Ctl:
    return Ctl(f"127.0.0.1:{member.grpc_port}")


def _listens(member: Member) -> bool:
    try:
        socket.create_connection(("127.0.0.1", member.amqp_port), 1).close()
    except OSError:
        return False
    return True


def test_stop_app_closes_the_listeners_and_start_app_opens_them_again(
    member: Member, ctl: Ctl
) -> None:
    """Durable objects and messages stay, transient ones go (R-Q-9, R-EX-9)."""
    connection = member.connect()
    channel = connection.channel()
    channel.queue_declare("durable", durable=True)
    channel.queue_declare("transient", durable=False)
    channel.exchange_declare("passing", "fanout", durable=False)
    channel.confirm_delivery()
    channel.basic_publish("", "durable", b"kept", pika.BasicProperties(delivery_mode=2))
    assert ctl("stop_app") == f"Stopping rabbit application on node {ctl.address} ...\n"
    with pytest.raises(pika.exceptions.AMQPError, match=r"320.*shutdown"):
        connection.process_data_events(time_limit=60)
    assert not _listens(member)
    assert ctl("-q", "stop_app") == ""
    assert json.loads(ctl("status", "--formatter", "json"))["is_listening"] is False
    assert ctl.run("node_health_check").returncode == 70
    assert ctl.run("await_startup", "-t", "0.3").returncode == 75
    ctl("start_app")
    ctl("-q", "await_startup")
    assert _listens(member)
    assert ctl("-s", "list_queues") == "durable\t1\n"
    assert "passing" not in ctl("-s", "list_exchanges", "name").splitlines()
    connection = member.connect()
    assert connection.channel().basic_get("durable", auto_ack=True)[2] == b"kept"
    connection.close()
    ctl("-q", "delete_queue", "durable")


def test_an_alarm_is_raised_and_cleared_by_eval(member: Member, ctl: Ctl) -> None:
    """R-ALM-1: a publisher is blocked until all alarms are gone."""
    blocked: list[str] = []
    connection = member.connect()
    connection.add_on_connection_blocked_callback(lambda *_: blocked.append("blocked"))
    connection.add_on_connection_unblocked_callback(lambda *_: blocked.append("unblocked"))
    channel = connection.channel()

    def spin_until(text: str) -> None:
        def has_come() -> bool:
            connection.process_data_events(time_limit=0.05)
            return blocked[-1:] == [text]

        eventually(has_come, text)

    for resource in ("memory", "disk"):
        form = f"rabbit_alarm:set_alarm({{{{resource_limit, {resource}, node()}}, []}})."
        assert ctl("eval", form) == "ok\n"
    channel.basic_publish("", "nobody", b"x")
    spin_until("blocked")
    assert ctl("eval", "rabbit_alarm:clear_alarm({resource_limit, memory, node()}).") == "ok\n"
    assert json.loads(ctl("status", "--formatter", "json"))["alarms"] == ["disk"]
    assert ctl("eval", "rabbit_alarm:clear_alarm({resource_limit, disk, node()}).") == "ok\n"
    spin_until("unblocked")
    connection.close()


def test_variables_are_read_and_set_by_eval(member: Member, ctl: Ctl) -> None:
    """R-CON-8: the next connection is offered the new channel_max."""
    assert ctl("eval", "application:get_env(rabbit, channel_max).") == "{ok,2047}\n"
    assert ctl("eval", stdin="application:set_env(rabbit, channel_max, 5).\n") == "ok\n"
    assert ctl("eval", "application:get_env(rabbit, channel_max).") == "{ok,5}\n"
    connection = member.connect()
    (row,) = ctl.rows("list_connections", "channel_max")
    assert row == {"channel_max": 5}
    connection.close()
    ctl("eval", "application:set_env(rabbit, channel_max, 2047).")
    get_users = "application:get_env(rabbit, loopback_users)."
    assert ctl("eval", get_users) == '{ok,[<<"guest">>]}\n'
    assert ctl("eval", "application:set_env(rabbit, loopback_users, []).") == "ok\n"
    assert ctl("eval", get_users) == "{ok,[]}\n"
    ctl("eval", 'application:set_env(rabbit, loopback_users, [<<"guest">>]).')
    assert ctl("eval", "application:get_env(rabbit, no_such_thing).") == "undefined\n"


@pytest.mark.parametrize(
    ("expression", "status"),
    [
        ("rabbit_misc:nothing().", 69),
        ("application:set_env(rabbit, no_such_thing, 1).", 69),
        ("application:set_env(rabbit, channel_max, -1).", 69),
        ("application:set_env(other, channel_max, 1).", 69),
        ("rabbit_alarm:set_alarm({{resource_limit, patience, node()}, []}).", 69),
        ("not finished", 64),
        ("", 64),
    ],
)
def test_other_expressions_are_refused_with_the_forms_that_are_known(
    ctl: Ctl, expression: str, status: int
) -> None:
    done = ctl.run("eval", expression)
    assert done.returncode == status
    assert done.stdout == ""
    assert (status == 64) or "rabbit_alarm:clear_alarm" in done.stderr


def test_feature_flags_are_enabled_by_name_and_unknown_ones_refused_as_rabbitmqctl_does(
    ctl: Ctl,
) -> None:
    """Words and statuses of RabbitMQ 3.10.8; a script must not take a typing error for done."""
    assert ctl("enable_feature_flag", "all") == "Enabling all feature flags ...\n"
    for flag in ("quorum_queue", "stream_queue", "rabbitmq_4.3.0"):
        assert ctl("enable_feature_flag", flag) == f'Enabling feature flag "{flag}" ...\n'
    for flag in ("quorum_queues_please", "rabbitmq_9.0.0"):
        refused = ctl.run("enable_feature_flag", flag)
        assert refused.returncode == 64
        text = f"This feature flag is not supported by node {ctl.address}"
        assert refused.stderr == f"Error:\n{text}\n"
    empty = ctl.run("enable_feature_flag", "")
    assert empty.returncode == 65
    assert "Bad argument: feature_flag cannot be an empty string" in empty.stderr


def test_the_pid_of_a_listed_connection_closes_it(member: Member, ctl: Ctl) -> None:
    """As RabbitMQ's Java client tests cut it out of the listing: a header, then tabs."""
    properties = {"connection_name": "named", "bytes": b"\xff\x01", "nothing": None}
    connection = member.connect(client_properties=properties)
    header, line = ctl("list_connections", "-q", "pid", "peer_port", "client_properties").split(
        "\n"
    )[:2]
    assert header == "pid\tpeer_port\tclient_properties"
    pid, port, shown = line.split("\t")
    assert int(port) == connection._impl._transport._sock.getsockname()[1]
    assert '{"connection_name","named"}' in shown
    assert '{"bytes",<<255,1>>}' in shown
    assert '{"nothing",undefined}' in shown
    assert ctl("close_connection", pid, "Closed via rabbitmqctl") == (
        f"Closing connection {pid}, reason: Closed via rabbitmqctl...\n"
    )
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
        connection.process_data_events(time_limit=60)
    assert closed.value.reply_code == 320
    assert closed.value.reply_text == "CONNECTION_FORCED - Closed via rabbitmqctl"


def test_all_connections_of_a_vhost_are_closed(member: Member, ctl: Ctl) -> None:
    ctl("add_vhost", "other")
    ctl("set_permissions", "-p", "other", "guest", ".*", ".*", ".*")
    here = [member.connect() for _ in range(3)]
    there = member.connect(virtual_host="other")
    answer = ctl("close_all_connections", "--limit", "1", "bye")
    assert answer == "Closing all connections in vhost /, reason: bye...\nClosed 1 connections\n"
    assert "Closed 2 connections" in ctl("close_all_connections", "bye")
    # Nobody has answered connection.close yet.
    states = sorted(ctl("-s", "list_connections", "vhost", "state").splitlines())
    assert states == ["/\tclosing"] * 3 + ["other\trunning"]
    assert "Closed 1 connections" in ctl("close_all_connections", "--global", "bye")
    for connection in [*here, there]:
        with pytest.raises(pika.exceptions.AMQPError):
            connection.process_data_events(time_limit=60)
    eventually(lambda: ctl.rows("list_connections") == [], "all have gone")
    ctl("delete_vhost", "other")


def test_limits_are_set_listed_and_cleared(ctl: Ctl) -> None:
    """R-VH-3, R-CON-12."""
    ctl("add_vhost", "few")
    ctl("set_vhost_limits", "-p", "few", '{"max-queues": 2, "max-connections": 3}')
    limits = '{"max-connections":3,"max-queues":2}'
    assert ctl("-q", "list_vhost_limits", "-p", "few") == f"{limits}\n"
    assert f"few\t{limits}\n" in ctl("-q", "list_vhost_limits", "--global")
    ctl("clear_vhost_limits", "-p", "few")
    assert ctl("-q", "list_vhost_limits", "-p", "few") == "\n"
    assert ctl.run("clear_vhost_limits", "-p", "few").returncode == 69
    ctl("delete_vhost", "few")
    ctl("add_user", "limited", "pw")
    ctl("set_user_limits", "limited", '{"max-channels": 1}')
    ctl("set_user_limits", "limited", '{"max-connections": 2}')
    both = '{"max-channels":1,"max-connections":2}\n'
    assert ctl("-q", "list_user_limits", "--user", "limited") == both
    ctl("clear_user_limits", "limited", "max-channels")
    assert ctl("-q", "list_user_limits", "--global") == (
        'user\tlimits\nlimited\t{"max-connections":2}\n'
    )
    ctl("clear_user_limits", "limited", "all")
    assert ctl.run("set_user_limits", "nobody", "{}").returncode == 69
    ctl("delete_user", "limited")


#: Made by rabbitmqctl 3.10.8 (shortened); the hash is of the password "secret".
RABBITMQ = {
    "rabbit_version": "3.10.8",
    "users": [
        {
            "name": "imported",
            "password_hash": "sfF5FOq9Ch8jh5pKLl3+ZIyJ7pDurJLwtsQ2O42EVqiKMOs5",
            "hashing_algorithm": "rabbit_password_hashing_sha256",
            "tags": ["monitoring"],
            "limits": {"max-channels": 7},
        }
    ],
    "vhosts": [{"limits": [["max-queues", 9]], "metadata": {"tags": "a,b"}, "name": "imp"}],
    "permissions": [
        {"user": "imported", "vhost": "imp", "configure": "^a", "read": "^c", "write": "^b"}
    ],
    "topic_permissions": [
        {"exchange": "amq.topic", "read": "b", "user": "imported", "vhost": "imp", "write": "a"}
    ],
    "parameters": [
        {"component": "vhost-limits", "name": "limits", "value": {"max-queues": 9}, "vhost": "imp"},
        {
            "component": "operator_policy",
            "name": "op",
            "value": {
                "apply-to": "all",
                "definition": [["max-length", 10]],
                "pattern": "^q",
                "priority": 3,
            },
            "vhost": "imp",
        },
        {
            "component": "federation-upstream",
            "name": "up",
            "value": {"uri": "amqp://user:secret@127.0.0.1"},
            "vhost": "imp",
        },
    ],
    "global_parameters": [{"name": "cluster_name", "value": "x"}],
    "policies": [
        {
            "apply-to": "queues",
            "definition": {"message-ttl": 60000},
            "name": "ttl",
            "pattern": "^q",
            "priority": 0,
            "vhost": "imp",
        }
    ],
    "queues": [
        {
            "arguments": {"x-queue-type": "quorum"},
            "auto_delete": False,
            "durable": True,
            "name": "q1",
            "type": "quorum",
            "vhost": "imp",
        }
    ],
    "exchanges": [
        {
            "arguments": {"alternate-exchange": "amq.fanout"},
            "auto_delete": False,
            "durable": True,
            "internal": False,
            "name": "ex",
            "type": "topic",
            "vhost": "imp",
        }
    ],
    "bindings": [
        {
            "arguments": {"z": 1},
            "destination": "q1",
            "destination_type": "queue",
            "routing_key": "a.#",
            "source": "ex",
            "vhost": "imp",
        }
    ],
}


def test_definitions_of_rabbitmq_come_in_and_go_out_again(ctl: Ctl, tmp_path: Path) -> None:
    """R-VH-3; SEC-14: RabbitMQ's password hashes are good for a login."""
    file = tmp_path / "rabbitmq.json"
    file.write_text(json.dumps(RABBITMQ))
    assert "Successfully imported 10 definitions" in ctl("import_definitions", str(file))
    assert "Success" in ctl("authenticate_user", "imported", "secret")
    assert ctl("-s", "-p", "imp", "list_queues", "name", "type", "policy", "operator_policy") == (
        "q1\tquorum\tttl\top\n"
    )
    out = tmp_path / "brokerd.json"
    ctl("export_definitions", str(out), "--with-passwords")
    assert out.stat().st_mode & 0o777 == 0o600
    # One that is there already, too.
    out.chmod(0o644)
    ctl("export_definitions", str(out), "--with-passwords")
    assert out.stat().st_mode & 0o777 == 0o600
    exported = json.loads(out.read_text())
    assert json.loads(ctl("export_definitions", "-", "--with-passwords")) == exported
    for section in ("permissions", "topic_permissions", "policies", "queues", "exchanges"):
        found = [row for row in exported[section] if row["vhost"] == "imp"]
        assert found == RABBITMQ[section], section
    assert exported["bindings"] == RABBITMQ["bindings"]
    (user,) = [row for row in exported["users"] if row["name"] == "imported"]
    assert [user] == RABBITMQ["users"]
    (up,) = [row for row in exported["parameters"] if row["name"] == "up"]
    assert up["value"] == {"uri": "amqp://user:secret@127.0.0.1"}
    # It all comes back after it is gone, and a second time changes nothing.
    ctl("delete_vhost", "imp")
    ctl("delete_user", "imported")
    for _ in range(2):
        ctl("-q", "import_definitions", stdin=out.read_text())
    assert json.loads(ctl("export_definitions", "-", "--with-passwords")) == exported
    # SEC-20: only then passwords are in it; importing the rest leaves those that are there.
    (up,) = [
        row
        for row in json.loads(ctl("export_definitions", "-"))["parameters"]
        if row["name"] == "up"
    ]
    assert up["value"] == {}
    ctl("-q", "import_definitions", stdin=ctl("export_definitions", "-"))
    assert json.loads(ctl("export_definitions", "-", "--with-passwords")) == exported
    ctl("delete_vhost", "imp")
    ctl("delete_user", "imported")


def test_exported_queues_have_their_type_among_their_arguments(ctl: Ctl) -> None:
    """As RabbitMQ 4.3.6 writes it; what was declared without it is imported again."""
    queue = {"name": "typed", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}
    ctl("-q", "import_definitions", stdin=json.dumps({"queues": [queue]}))
    exported = ctl("export_definitions", "-")
    [row] = [each for each in json.loads(exported)["queues"] if each["name"] == "typed"]
    assert row["arguments"] == {"x-queue-type": "classic"}
    rows = ctl("-s", "list_queues", "name", "arguments", "messages_delayed").splitlines()
    assert 'typed\t[{"x-queue-type","classic"}]\t0' in rows
    for text in (exported, json.dumps({"queues": [queue]})):
        ctl("-q", "import_definitions", stdin=text)
    ctl("delete_queue", "typed")


def test_what_cannot_be_imported_is_named_and_the_rest_is_done(ctl: Ctl, tmp_path: Path) -> None:
    definitions: dict[str, Any] = {
        "vhosts": [{"name": "half"}],
        "permissions": [
            {"user": "nobody", "vhost": "half", "configure": "", "write": "", "read": ""}
        ],
        "queues": [{"name": "q", "vhost": "half", "durable": True, "auto_delete": False}],
    }
    done = ctl.run("import_definitions", stdin=json.dumps(definitions))
    assert done.returncode == 69
    assert "1 of 3 objects could not be imported" in done.stderr
    assert "nobody" in done.stderr
    assert ctl("-s", "-p", "half", "list_queues", "name") == "q\n"
    for text, status in (("{nope", 65), ("[]", 65), ('{"users": [{}]}', 65)):
        assert ctl.run("import_definitions", stdin=text).returncode == status
    for file, reason in ((tmp_path / "none", "does not exist"), (tmp_path, "is a directory")):
        refused = ctl.run("import_definitions", str(file))
        assert refused.returncode == 65
        assert reason in refused.stderr
    # Not only regular files: `import_definitions <(…)` of a shell is a pipe.
    empty = ctl.run("import_definitions", "/dev/stdin", stdin="")
    assert "Failed to deserialise input" in empty.stderr
    assert ctl.run("export_definitions", "-", "--format", "erlang").returncode == 65
    ctl("delete_vhost", "half")


def test_definitions_with_hashes_are_for_administrators_only(ctl: Ctl) -> None:
    """SEC-20."""
    ctl("add_user", "reader2", "pw")
    ctl("set_user_tags", "reader2", "monitoring")
    refused = ctl.run("--user", "reader2", "--password", "pw", "export_definitions", "-")
    assert refused.returncode == 77
    assert refused.stdout == ""
    ctl("delete_user", "reader2")


def test_a_link_named_rabbitmqctl_takes_the_place_of_rabbitmqctl(ctl: Ctl, tmp_path: Path) -> None:
    program = tmp_path / "brokerctl"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(REPOSITORY)!r})\n"
        "from brokerd.ctl.main import main\nmain()\n"
    )
    program.chmod(0o755)
    link = tmp_path / "rabbitmqctl"
    link.symlink_to("brokerctl")
    nodes = f"rabbit@here={ctl.address},other@here=127.0.0.1:1"

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": os.environ["PATH"], "BROKERD_NODES": nodes}
        return subprocess.run(
            [str(link), *arguments], capture_output=True, text=True, env=environment, timeout=120
        )

    assert run("-n", "rabbit@here", "-q", "list_users").stdout.startswith("user\ttags\nguest\t[")
    assert run("-n", "other@here", "list_users").returncode == 69
    assert run("version").stdout == "3.10.8\n"
    assert "rabbitmqctl add_user" in run("add_user").stderr
    port = ctl.address.rpartition(":")[2]
    assert run("--node", f"rabbit@localhost:{port}", "ping").returncode == 0


def test_verbs_without_a_meaning_say_what_to_do_instead(ctl: Ctl) -> None:
    for words in (["join_cluster", "rabbit@a"], ["sync_queue", "q"], ["reset"], ["rotate_logs"]):
        done = ctl.run(*words)
        assert done.returncode == 64
        assert f"'{words[0]}' is not offered by brokerd: " in done.stderr
        assert ctl.run(words[0], "--help").returncode == 0


def test_waiting_for_a_member_takes_a_pid_or_a_pid_file(ctl: Ctl, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    file.write_text(f"{os.getpid()}\n")
    assert "are running on node" in ctl("wait", str(file), "-t", "60")
    ctl("-q", "wait", "--pid", str(os.getpid()))
    assert ctl.run("wait").returncode == 64
    assert ctl.run("wait", str(tmp_path / "none"), "-t", "0.3").returncode == 75
    (port,) = free_ports(1)
    down = Ctl(f"127.0.0.1:{port}")
    assert down.run("wait", "--pid", str(os.getpid()), "-t", "0.3").returncode == 75
