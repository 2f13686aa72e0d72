"""The same command lines, by rabbitmqctl to RabbitMQ and by brokerctl to brokerd: the same bytes
on standard output, the same exit status, and for mistakes the same first words.

The lines are run once, in order, on nodes of their own; each line is a case. What is each server's
own (names, pids, ports) is replaced before, and rows are sorted where RabbitMQ has no order.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pika
import pytest

from tests.compat.brokerd_server import ENVIRONMENT
from tests.integration.members import REPOSITORY, cluster
from tests.rabbitmq_node import rabbit_node

pytestmark = pytest.mark.timeout(900)

RABBITMQCTL = "/usr/lib/rabbitmq/bin/rabbitmqctl"
BROKERCTL = (sys.executable, "-c", "from brokerd.ctl.main import main; main()")
LINE_S = 60.0

#: One command line each; ` < TEXT` is standard input. In order: each finds what those before left.
LINES = """\
list_users
list_users -q
list_users -s
list_users --no-table-headers
list_users --formatter json
add_user ann pw
add_user ann pw
add_user bob < secret
add_user carl <
add_user --quiet dora pw
add_user
add_user eve -- -pw
authenticate_user eve -- -pw
authenticate_user ann wrong
change_password ann new
clear_password dora
delete_user nobody
delete_user dora -q
set_user_tags ann policymaker monitoring
list_users --nope
list_users nope
add_vhost v1
add_vhost v1
add_vhost v2 --description d
list_vhosts
list_vhosts name tracing
delete_vhost nope
set_permissions ann .* .* .*
set_permissions -p v1 ann ^a ^b ^c
set_permissions -p nope ann .* .* .*
set_permissions nobody .* .* .*
set_permissions ann .* .*
list_permissions
list_permissions -p nope
list_user_permissions ann
list_user_permissions nobody
clear_permissions ann
clear_permissions -p nope ann
set_topic_permissions ann amq.topic ^x ^y
set_topic_permissions nobody amq.topic a b
list_topic_permissions
list_user_topic_permissions ann
clear_topic_permissions ann amq.topic
set_policy p1 ^q '{"max-length":10}' --priority 3 --apply-to queues
set_policy p1 ^q '{"max-length":10'
set_policy p1 ^q '{"nope":10}'
set_policy p1 ( '{"max-length":10}'
set_policy -p nope a b '{"max-length":1}'
list_policies
clear_policy p1
clear_policy p1
set_operator_policy op1 ^q '{"max-length":10}' --priority 3 --apply-to queues
list_operator_policies
clear_operator_policy op1
set_parameter nope u '{"uri":"amqp://x"}'
list_parameters
list_parameters --formatter json
set_vhost_limits -p v1 '{"max-connections":5,"max-queues":7}'
set_vhost_limits -p v1 '{"nope":5}'
list_vhost_limits -p v1
list_vhost_limits
list_vhost_limits --global
clear_vhost_limits -p v1
set_user_limits ann '{"max-connections":5,"max-channels":7}'
set_user_limits ann '{"nope":5}'
list_user_limits --user ann
list_user_limits --global
clear_user_limits ann max-channels
clear_user_limits ann all
list_queues
list_queues -q name messages policy arguments durable auto_delete
list_queues -s name,consumers
list_queues --formatter json name messages arguments
list_queues --formatter csv name arguments messages
list_queues name pid owner_pid exclusive_consumer_tag
list_queues name messages_ready messages_unacknowledged state type head_message_timestamp
list_queues nope
list_queues -p v1
list_queues -p v1 --formatter json
list_queues -t abc
list_exchanges
list_exchanges -q name type durable auto_delete internal arguments policy
list_bindings
list_bindings -q source_name destination_name arguments
list_connections
list_connections -q pid peer_port client_properties
list_connections --formatter json user peer_host peer_port vhost protocol
list_connections name ssl protocol auth_mechanism timeout frame_max channel_max channels
list_channels
list_channels -q name number user vhost transactional confirm messages_unconfirmed prefetch_count
list_consumers
delete_queue used --if-unused
delete_queue nope
purge_queue plain
purge_queue nope
delete_queue plain
trace_on
list_vhosts -q name tracing
trace_off -q
close_connection '<other.1.2.3>' because
close_connection nonsense because
close_all_connections --vhost v1 bye
close_all_connections
eval 'rabbit_alarm:set_alarm({{resource_limit, memory, node()}, []}).'
eval 'rabbit_alarm:clear_alarm({resource_limit, memory, node()}).'
eval 'application:set_env(rabbit, channel_max, 100).'
eval 'application:get_env(rabbit, channel_max).'
eval 'application:get_env(rabbit, nope).'
eval 'application:get_env(rabbit, loopback_users).'
eval 'application:set_env(rabbit, loopback_users, [<<"guest">>]).'
eval foo
eval ''
set_disk_free_limit 1MB
set_disk_free_limit nope
set_vm_memory_high_watermark 0.5
set_vm_memory_high_watermark absolute 2GB
set_vm_memory_high_watermark 2
set_vm_memory_high_watermark
list_unresponsive_queues
import_definitions < {"vhosts":[{"name":"imp"}]} trailing
import_definitions /nonexistent/definitions.json
stop_app -q
start_app -q
wait
nope_command
delete_vhost v1
delete_vhost v2
""".splitlines()
#: Standard error is compared up to here: what follows is each tool's own (usage, causes).
_MEANING = {
    # The reason is the JSON library's.
    "JSON decoding error": "JSON decoding error",
    "Validation failed": "Validation failed",
    "Unrecognised terms": "",
    "limits: unknown limit": "",
    "Queue is in use": "Queue is in use",
    "Failed to deserialise input": "Failed to deserialise input",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command line brought."""

    status: int
    out: str
    error: str


class Tool:
    """rabbitmqctl or brokerctl with the node it speaks to."""

    def __init__(self, command: tuple[str, ...], env: dict[str, str], node: str, port: int) -> None:
        self._command = command
        self._env = env
        self._node = node
        self._port = port

    def run(self, line: str) -> Answer:
        """Run one line."""
        words, has_input, text = line.partition(" <")
        done = subprocess.run(
            [*self._command, "-n", self._node, *shlex.split(words)],
            input=f"{text.strip()}\n" if has_input and text.strip() else "",
            capture_output=True,
            text=True,
            env=self._env,
            cwd=REPOSITORY,
            timeout=LINE_S,
        )
        return Answer(done.returncode, self._shared(done.stdout), _error(done.stderr))

    def run_all(self) -> dict[str, list[Answer]]:
        """Run all lines in order, beside a client that has something to be listed."""
        parameters = pika.ConnectionParameters(
            "127.0.0.1", self._port, heartbeat=0, client_properties={"connection_name": "listed"}
        )
        with pika.BlockingConnection(parameters) as connection:
            _topology(connection)
            found: dict[str, list[Answer]] = {}
            for line in LINES:
                if line.startswith("stop_app"):
                    connection.close()
                found.setdefault(line, []).append(self.run(line))
            return found

    def _shared(self, text: str) -> str:
        """Replace what is this server's own."""
        text = text.replace(self._node, "NODE").replace(str(self._port), "PORT")
        text = re.sub(r"^(n0|compat\d+@localhost)$", "NODE", text, flags=re.MULTILINE)
        text = re.sub(r"<[^<>\s]+\.\d+\.\d+\.\d+>", "<PID>", text)
        # Ports of the client: in names, in columns, in JSON.
        text = re.sub(r"127\.0\.0\.1:\d+ ->", "127.0.0.1:CLIENT ->", text)
        text = re.sub(r"(127\.0\.0\.1\t|<PID>\t)\d{4,5}\b", r"\1CLIENT", text)
        return re.sub(r'"peer_port":\d+', '"peer_port":CLIENT', text)


def _topology(connection: pika.BlockingConnection) -> None:
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("plain", durable=True)
    channel.queue_declare("used", arguments={"x-message-ttl": 60000, "x-max-priority": 5})
    channel.queue_declare("ünï", durable=True, arguments={"x-queue-type": "quorum"})
    channel.queue_declare("exclusive", exclusive=True)
    channel.exchange_declare("ex", "topic", arguments={"alternate-exchange": "amq.fanout"})
    channel.queue_bind("plain", "ex", "a.#", arguments={"z": 1, "list": [True, "x"]})
    for _ in range(3):
        channel.basic_publish("", "plain", b"hello")
    channel.basic_qos(prefetch_count=7)
    channel.basic_consume("used", lambda *_: None, consumer_tag="t", arguments={"x-priority": 3})
    other = connection.channel()
    other.basic_consume("exclusive", lambda *_: None, auto_ack=True, consumer_tag="u")


def _error(text: str) -> str:
    """Return what a mistake is called, without the tool's own usage and diagnostics."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text).partition("\nArguments given:")[0].strip()
    for known, meaning in _MEANING.items():
        if known in text:
            return meaning
    if text.startswith("Error (argument validation): Info key(s)"):
        return text.partition("\n")[0]
    return text.partition("\nDid you mean")[0].partition("\nSee '")[0].replace('"', "").strip()


@pytest.fixture(scope="module")
def answers(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[dict[str, list[Answer]], dict[str, list[Answer]]]]:
    """All lines on both, at the same time."""
    folder: Path = tmp_path_factory.mktemp("ctl")
    with (
        rabbit_node(folder / "rabbitmq") as node,
        cluster(folder, 1, **ENVIRONMENT) as [member],
    ):
        name = node.environment["RABBITMQ_NODENAME"]
        # One scheduler that does not spin while it waits: a fifth less to compute.
        lean = node.environment | {"RABBITMQ_CTL_ERL_ARGS": "+S 1:1 +sbwt none"}
        tools = (
            Tool((RABBITMQCTL,), lean, name, node.amqp_port),
            Tool(BROKERCTL, node.environment, f"127.0.0.1:{member.grpc_port}", member.amqp_port),
        )
        with ThreadPoolExecutor(2) as pool:
            theirs, ours = pool.map(Tool.run_all, tools)
        yield theirs, ours


#: Rows that RabbitMQ lists in no order.
_UNORDERED = ("list_",)
#: What brokerd shows on purpose otherwise: docs/reference/brokerctl.md, differences.
_OTHERWISE = {
    "nope_command": "the list of all commands is not repeated",
    "import_definitions": "brokerd says how many it has imported, and does it before it answers",
}


#: What brokerd's error says behind RabbitMQ's: what was asked for, and what would be right.
_GOES_ON = {
    "purge_queue nope": ": there is no queue 'nope' in vhost '/'",
    "delete_queue nope": ": there is no 'nope'",
    "set_disk_free_limit nope": ": 'nope' is no number of bytes (2GB)",
}


@pytest.mark.parametrize("line", list(dict.fromkeys(LINES)))
def test_a_command_line_has_the_same_answer(
    answers: tuple[dict[str, list[Answer]], dict[str, list[Answer]]], line: str
) -> None:
    theirs, ours = (found[line] for found in answers)
    for one, other in zip(theirs, ours, strict=True):
        assert other.status == one.status, (one, other)
        if line in _OTHERWISE:
            continue
        out = [answer.out for answer in (other, one)]
        if line.startswith(_UNORDERED):
            assert _sorted(out[0]) == _sorted(out[1]), (one, other)
        else:
            # Each tool names itself where it says what to read.
            assert out[0].replace("brokerctl help", "rabbitmqctl help") == out[1], (one, other)
        theirs_error = one.error
        if line in _GOES_ON:
            theirs_error = one.error.removesuffix(".") + _GOES_ON[line]
        assert other.error == theirs_error


def _sorted(text: str) -> list[str]:
    return sorted(line.removeprefix(",") for line in text.splitlines())
