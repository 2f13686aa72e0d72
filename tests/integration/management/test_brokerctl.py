"""brokerctl as a program, against a real member."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.members import REPOSITORY, Member, cluster, eventually
from tests.ports import free_ports

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    with cluster(tmp_path_factory.mktemp("ctl"), 1) as members:
        yield members[0]


class Ctl:
    """Runs brokerctl against one member."""

    def __init__(self, address: str) -> None:
        self.address = address

    def run(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command and return what became of it."""
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("BROKERD_")
        }
        return subprocess.run(
            [sys.executable, "-c", "from brokerd.ctl.main import main; main()", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
            cwd=REPOSITORY,
            env=environment | {"BROKERD_ADDRESS": self.address},
        )

    def __call__(self, *arguments: str, stdin: str = "") -> str:
        """Run a command that must succeed; return its output."""
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        assert not done.stderr
        return done.stdout

    def rows(self, *arguments: str) -> list[dict[str, Any]]:
        """Run a listing and return its rows."""
        found: list[dict[str, Any]] = json.loads(self(*arguments, "--formatter", "json"))
        return found


@pytest.fixture(scope="module")
def ctl(member: Member) -> Ctl:
    return Ctl(f"127.0.0.1:{member.grpc_port}")


def test_queues_are_listed_with_the_columns_asked_for(member: Member, ctl: Ctl) -> None:
    connection = member.connect()
    channel = connection.channel()
    channel.queue_declare("listed", durable=True, arguments={"x-queue-type": "quorum"})
    channel.confirm_delivery()
    for _ in range(3):
        channel.basic_publish("", "listed", b"x")
    try:
        assert ctl("-q", "list_queues").splitlines() == ["name\tmessages", "listed\t3"]
        out = ctl("-s", "-p", "/", "list_queues", "name", "type", "messages_ready", "consumers")
        assert out == "listed\tquorum\t3\t0\n"
        # Options behind the command do the same.
        assert ctl("list_queues", "name", "-s", "-p", "/") == "listed\n"
        assert ctl.rows("list_queues", "name", "leader", "members") == [
            {"name": "listed", "leader": "n0", "members": ["n0"]}
        ]
        assert ctl("list_queues", "name", "arguments", "--formatter", "csv").splitlines() == [
            '"name","arguments"',
            '"listed","[{""x-queue-type"",""quorum""}]"',
        ]
        assert "\nListing queues for vhost / ...\nname\tmessages\n" in ctl("list_queues")
        assert ctl("purge_queue", "listed") == "Purging queue 'listed' in vhost '/' ...\n"
        assert ctl("-s", "list_queues", "messages") == "0\n"
    finally:
        connection.close()
        ctl("-q", "delete_queue", "listed")
    assert ctl("-s", "list_queues") == ""


@pytest.mark.parametrize(
    "words",
    [
        ["--ca-file", "/nosuch", "list_queues"],
        ["--ca-file", "/nosuch", "export"],
        ["--password-file", "/nosuch", "list_queues"],
        ["export", "--definitions", "/nosuch"],
        ["telemetry", "run", "--pull", "127.0.0.1:1", "--out", ".", "--ca-file", "/nosuch"],
        ["wal", "inspect", "/nosuch"],
    ],
)
def test_a_file_of_an_option_that_cannot_be_read_has_one_status(ctl: Ctl, words: list[str]) -> None:
    done = ctl.run(*words)
    assert done.returncode == 74, done.stderr
    assert "/nosuch" in done.stderr
    assert "No such file" in done.stderr or "does not exist" in done.stderr


def test_delete_queue_keeps_to_its_conditions(member: Member, ctl: Ctl) -> None:
    connection = member.connect()
    channel = connection.channel()
    channel.queue_declare("kept", durable=True)
    channel.confirm_delivery()
    channel.basic_publish("", "kept", b"x")
    unempty = ctl.run("delete_queue", "kept", "--if-empty")
    channel.basic_consume("kept", lambda *_: None)
    unused = ctl.run("delete_queue", "kept", "-u")
    connection.close()
    assert unempty.returncode == unused.returncode == 64
    assert "Queue is not empty" in unempty.stderr
    assert "Queue is in use" in unused.stderr
    assert "1 consumers" in unused.stderr
    ctl("delete_queue", "kept")
    missing = ctl.run("delete_queue", "kept")
    assert missing.returncode == 64
    assert missing.stderr == "Error:\nQueue not found: there is no 'kept'\n"


def test_a_user_is_made_changed_and_deleted(ctl: Ctl) -> None:
    """R-PERM-1, R-PERM-9, SEC-10: the password goes in by stdin and never comes out."""
    ctl("add_user", "ann", stdin="first\n")
    again = ctl.run("add_user", "ann", "other")
    assert again.returncode == 70
    assert again.stderr == 'Error:\nUser "ann" already exists\n'
    ctl("set_user_tags", "ann", "monitoring", "management")
    ctl("change_password", "ann", "second")
    assert ctl("-q", "authenticate_user", "ann", "second") == ""
    wrong = ctl.run("authenticate_user", "ann", "first")
    assert wrong.returncode == 65
    # Tags survive a change of the password.
    users = {row["user"]: row["tags"] for row in ctl.rows("list_users")}
    assert users == {"ann": ["monitoring", "management"], "guest": ["administrator"]}
    ctl("set_permissions", "ann", "^x", "", ".*")
    assert {"user": "ann", "configure": "^x", "write": "", "read": ".*"} in ctl.rows(
        "list_permissions"
    )
    assert ctl("-s", "list_user_permissions", "ann") == "/\t^x\t\t.*\n"
    ctl("clear_permissions", "ann")
    assert ctl("-s", "list_user_permissions", "ann") == "\n"
    ctl("delete_user", "ann")
    for command in (["delete_user"], ["change_password", "x"], ["set_user_tags", "x"]):
        gone = ctl.run(command[0], "ann", *command[1:])
        assert gone.returncode == 67, command
    assert ctl.run("list_user_permissions", "ann").returncode == 69
    empty = ctl.run("add_user", "bob", stdin="\n")
    assert empty.returncode == 65


def test_a_reader_may_list_and_not_change(ctl: Ctl) -> None:
    """R-PERM-9: management tags read, only administrators write."""
    ctl("add_user", "reader", "pw")
    ctl("set_user_tags", "reader", "monitoring")
    login = ("--user", "reader", "--password", "pw")
    assert "reader" in ctl(*login, "list_users")
    refused = ctl.run(*login, "add_vhost", "v")
    assert refused.returncode == 77
    assert "administrator" in refused.stderr
    ctl("set_user_tags", "reader")
    assert ctl.run(*login, "list_users").returncode == 77
    assert ctl.run("--user", "reader", "--password", "no", "ping").returncode == 77
    ctl("delete_user", "reader")


def test_vhosts_policies_and_parameters_come_and_go(ctl: Ctl) -> None:
    """R-POL-1, R-POL-11."""
    ctl("add_vhost", "v/1", "--description", "for tests", "--default-queue-type", "quorum")
    # As with rabbitmqctl: what is there already stays as it is.
    ctl("add_vhost", "v/1")
    rows = ctl.rows("list_vhosts", "name", "description", "default_queue_type")
    assert {"name": "v/1", "description": "for tests", "default_queue_type": "quorum"} in rows
    definition = '{"alternate-exchange": "ae"}'
    ctl("-p", "v/1", "set_policy", "ae", "^orders", definition, "--apply-to", "exchanges")
    (policy,) = ctl.rows("-p", "v/1", "list_policies")
    assert json.loads(policy["definition"]) == {"alternate-exchange": "ae"}
    assert policy["apply-to"] == "exchanges"
    assert ctl.rows("list_policies") == []
    for arguments in (["p", "(", "{}"], ["p", "x", "no json"], ["p", "x", '{"nonsense": 1}']):
        refused = ctl.run("-p", "v/1", "set_policy", *arguments)
        assert refused.returncode == 69, (arguments, refused.stdout, refused.stderr)
        assert refused.stderr.startswith("Error:\n")
    ctl("-p", "v/1", "set_operator_policy", "top", ".*", '{"max-length": 10}')
    assert len(ctl.rows("-p", "v/1", "list_operator_policies")) == 1
    ctl("-p", "v/1", "clear_operator_policy", "top")
    value = '{"uri": "amqp://bob:hunter2@127.0.0.1/v?heartbeat=3", "max-hops": 2}'
    ctl("-p", "v/1", "set_parameter", "federation-upstream", "up", value)
    (parameter,) = ctl.rows("-p", "v/1", "list_parameters")
    assert (parameter["component"], parameter["name"]) == ("federation-upstream", "up")
    # As rabbitmqctl, but for who logs in (SEC-20).
    assert parameter["value"] == '{"max-hops":2,"uri":"amqp://127.0.0.1/v"}'
    ctl("-p", "v/1", "clear_parameter", "federation-upstream", "up")
    ctl("-p", "v/1", "clear_policy", "ae")
    assert ctl.run("-p", "v/1", "clear_policy", "ae").returncode == 69
    ctl("delete_vhost", "v/1")
    assert ctl.run("delete_vhost", "v/1").returncode == 65


def test_clients_are_listed_and_a_connection_can_be_closed(member: Member, ctl: Ctl) -> None:
    connection = member.connect()
    channel = connection.channel()
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.basic_qos(prefetch_count=7)
    channel.basic_consume(queue, lambda *_: None, consumer_tag="tag")
    assert ctl.rows("list_consumers", "queue_name", "consumer_tag", "prefetch_count") == [
        {"queue_name": queue, "consumer_tag": "tag", "prefetch_count": 7}
    ]
    assert ctl.rows("list_channels", "user", "consumer_count") == [
        {"user": "guest", "consumer_count": 1}
    ]
    (row,) = ctl.rows("list_connections", "pid", "user", "vhost", "state")
    assert (row["user"], row["vhost"], row["state"]) == ("guest", "/", "running")
    ctl("close_connection", row["pid"], "maintenance")
    with pytest.raises(Exception, match=r"320.*maintenance"):
        connection.process_data_events(time_limit=60)
    eventually(lambda: ctl.rows("list_connections") == [], "it is closed")
    # It is closed, whoever has done it; something that is no pid is a mistake.
    assert ctl.run("close_connection", row["pid"]).returncode == 0
    assert ctl.run("close_connection", "nonsense").returncode == 69
    eventually(lambda: ctl.rows("list_queues") == [], "the exclusive queue is gone")


def test_status_and_cluster_status_tell_of_the_member(ctl: Ctl) -> None:
    fields = json.loads(ctl("status", "--formatter", "json"))
    assert fields["node"] == fields["catalog_leader"] == "n0"
    assert fields["caught_up"] is True
    assert fields["memory_used"] > 0
    assert fields["alarms"] == fields["damaged_groups"] == []
    cluster = json.loads(ctl("cluster_status", "--formatter", "json"))
    assert cluster["running_nodes"] == cluster["disk_nodes"] == ["n0"]
    assert [row["name"] for row in cluster["members"]] == ["n0"]
    shown = ctl("status")
    assert "Node name: n0\n" in shown
    assert f"Form: {fields['form']}\n" in shown
    assert fields["form"] in ("python", "compiled")
    assert "Running Nodes\n\nn0\n" in ctl("cluster_status")
    report = ctl("report")
    assert "Cluster name: tests\n" in report
    assert "Queues on /:" in report
    assert ctl("-q", "node_health_check") == ctl("-q", "await_online_nodes", "1") == ""
    assert ctl("-q", "ping") == ctl("-q", "await_startup") == ctl("-q", "safe_to_stop") == ""
    groups = ctl.rows("list_groups", "name", "leader")
    assert {"name": "the catalog", "leader": "n0"} in groups


def test_environment_shows_settings_without_secrets(member: Member, ctl: Ctl) -> None:
    """SEC-20."""
    fields = json.loads(ctl("environment", "--formatter", "json"))
    assert fields["listeners.amqp"] == member.amqp_port
    assert fields["cluster.name"] == "tests"
    assert fields["auth.admin_password"] == ""


def test_memory_watermark_is_set_and_raises_the_alarm(ctl: Ctl) -> None:
    """R-MEM-13."""

    def alarms() -> list[str]:
        found: list[str] = json.loads(ctl("status", "--formatter", "json"))["alarms"]
        return found

    ctl("set_vm_memory_high_watermark", "absolute", "1000000")
    assert alarms() == ["memory"]
    ctl("set_vm_memory_high_watermark", "0.9")
    assert alarms() == []
    ctl("set_disk_free_limit", "mem_relative", "100000")
    assert alarms() == ["disk"]
    ctl("set_disk_free_limit", "1MB", "--all-members")
    # This member's own value outranks the cluster's.
    assert alarms() == ["disk"]
    ctl("set_disk_free_limit", "1MB")
    assert alarms() == []
    assert ctl.run("set_vm_memory_high_watermark", "a lot").returncode == 65
    assert ctl.run("set_vm_memory_high_watermark", "relative", "0.4").returncode == 64


@pytest.mark.parametrize(
    "arguments",
    [
        ["no_such_command"],
        ["list_queues", "no_such_column"],
        ["list_queues", "--no-such-option"],
        ["add_user"],
        ["-t", "soon", "ping"],
    ],
)
def test_wrong_command_lines_end_with_status_64(ctl: Ctl, arguments: list[str]) -> None:
    done = ctl.run(*arguments)
    assert done.returncode == 64
    assert done.stdout == ""
    assert done.stderr.startswith(("Error (argument validation): ", "\nCommand 'no_such_command'"))


def test_a_file_that_is_named_and_cannot_be_read_gives_status_74(ctl: Ctl) -> None:
    done = ctl.run("--password-file", "/nonexistent", "ping")
    assert (done.returncode, done.stdout) == (74, "")
    assert done.stderr.endswith("cannot read /nonexistent: No such file or directory\n")


def test_a_member_that_is_down_gives_status_69_and_says_where_it_was_looked_for() -> None:
    (port,) = free_ports(1)
    down = Ctl(f"127.0.0.1:{port}")
    done = down.run("list_queues")
    assert done.returncode == 69
    assert f"127.0.0.1:{port}" in done.stderr
    late = down.run("await_startup", "-t", "0.3")
    assert late.returncode == 75


def test_of_several_members_those_that_answer_are_asked(ctl: Ctl) -> None:
    (port,) = free_ports(1)
    both = Ctl(f"127.0.0.1:{port},{ctl.address}")
    assert "guest" in both("list_users")
    done = both.run("list_connections", "-s")
    assert done.returncode == 0
    assert done.stderr.startswith("Warning: ")


def processor_seconds(ctl: Ctl) -> float:
    """Return what one command costs."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ctl("-q", "ping")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_a_command_takes_less_than_400_ms_with_nothing_of_the_server_imported(ctl: Ctl) -> None:
    # Processor time, which is elapsed time on a machine with nothing else to do; the least of five,
    # because neighbours on a core cost it, too.
    assert min(processor_seconds(ctl) for _ in range(5)) < 0.4
    probe = (
        "import sys; from brokerd.ctl.main import run; run(['-q', 'list_queues']); "
        "print([m for m in ('aiohttp', 'pydantic', 'kopf', 'rich', 'brokerd.server') "
        "if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env=os.environ | {"BROKERD_ADDRESS": ctl.address},
        timeout=60,
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_wal_of_a_stopped_member_is_inspected_and_verified(tmp_path: Path) -> None:
    with cluster(tmp_path, 1) as (one,):
        connection = one.connect()
        channel = connection.channel()
        channel.queue_declare("q", durable=True, arguments={"x-queue-type": "quorum"})
        channel.confirm_delivery()
        channel.basic_publish("", "q", b"kept")
        connection.close()
        one.stop()
        offline = Ctl("127.0.0.1:1")
        groups = offline.rows("wal", "inspect", str(one.data_dir))
        assert len(groups) == 2
        assert all(group["entries"] > 0 and not group["is_damaged"] for group in groups)
        assert offline("wal", "inspect", str(one.data_dir / "wal"), "--records").count("\n") > 4
        assert offline("wal", "verify", str(one.data_dir)).startswith("intact: ")
        assert "nothing is lost" in offline("wal", "accept-loss", str(one.data_dir))
        segment = next((one.data_dir / "wal").glob("wal-*"))
        image = bytearray(segment.read_bytes())
        at = image.index(b"kept")
        image[at : at + 4] = b"torn"
        # Something intact follows, so this is damage and no torn write.
        segment.write_bytes(image)
        verdict = offline.run("wal", "verify", str(one.data_dir))
        assert verdict.returncode == 1, verdict.stdout
        assert verdict.stdout.startswith("damaged: ")
        assert offline("wal", "accept-loss", "--yes", str(one.data_dir)).count("lost entries") == 1
        assert offline("wal", "verify", str(one.data_dir)).startswith("intact: ")
        assert offline.run("wal", "verify", str(tmp_path / "none")).returncode == 74
