"""Administration over HTTP: the same calls, and the same `rabbitmqadmin`, to both servers."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.compat.http_administration import CALLS
from tests.compat.http_calls import Call
from tests.compat.servers import Server
from tests.compat.test_http_api import PAGE, Answers, missing, prepared, unequal
from tests.integration.members import eventually

RABBITMQADMIN = Path("/usr/bin/rabbitmqadmin")


def test_both_answer_the_same_calls_of_administrators_alike(
    rabbitmq: Server, brokerd: Server
) -> None:
    wrong, needless = [], []
    with prepared(rabbitmq) as theirs, prepared(brokerd) as ours:
        for call in CALLS:
            pair = theirs.ask(call), ours.ask(call)
            if call.differs and "status" in call.parts:
                if pair[0][0] == pair[1][0] and pair[0][2] == pair[1][2]:
                    needless.append(f"{call.differs}: {call.path}")
                continue
            if difference := unequal(call, *pair):
                wrong.append(f"{call.method} {call.path} {call.body}: {difference}")
            bare = Call(call.method, call.path, call.body, call.user, exact="value" in call.parts)
            if call.differs and not unequal(bare, *pair):
                needless.append(f"{call.differs}: {call.path}")
    assert not wrong, "\n".join(wrong)
    assert not needless, f"no difference any more: {needless}"


def test_every_difference_of_administration_has_its_row() -> None:
    rows = re.findall(r"^\| (H-\d+) \|", PAGE.read_text(), re.MULTILINE)
    assert {call.differs for call in CALLS if call.differs} <= set(rows)


# ---- clients ------------------------------------------------------------------------------------

#: What RabbitMQ has of Erlang's processes, and counts per connection or channel (H-110).
ABSENT = {
    *("garbage_collection", "reductions", "reductions_details", "recv_cnt", "send_cnt"),
    *("message_stats", "idle_since", "pending_raft_commands", "arguments.x-odd"),
}


def test_a_client_is_shown_and_closed_with_the_reason(server: Server, vhost: str) -> None:
    answers = Answers(server.http_port)
    with server.connected(vhost, client_properties={"connection_name": "mine"}) as connection:
        channel = connection.channel()
        channel.queue_declare("q")
        channel.basic_qos(prefetch_count=7)
        channel.basic_consume("q", lambda *_: None, consumer_tag="tag")

        def rows() -> Any:
            connection.process_data_events(0)
            mine = answers.get(f"/api/vhosts/{vhost}/connections")
            channels = answers.get(f"/api/vhosts/{vhost}/channels")
            consumers = answers.get(f"/api/consumers/{vhost}")
            # RabbitMQ's statistics come one after the other, and for seconds as they were when the
            # connection had no channel, and the channel no consumer.
            known = mine and "peer_port" in mine[0] and mine[0].get("channels")
            served = channels and channels[0].get("consumer_count")
            return (mine, channels, consumers) if known and served and consumers else None

        [row], [shown], [consumer] = eventually(rows, "connection, channel and consumer shown", 60)
        assert (row["user_provided_name"], row["user"], row["protocol"], row["channels"]) == (
            *("mine", "guest", "AMQP 0-9-1", 1),
        )
        assert row["client_properties"]["capabilities"]["basic.nack"] is True
        assert (shown["prefetch_count"], shown["consumer_count"]) == (7, 1)
        assert shown["connection_details"]["name"] == row["name"]
        assert consumer["channel_details"]["connection_name"] == row["name"]
        assert (consumer["queue"], consumer["consumer_tag"]) == (
            *({"name": "q", "vhost": vhost}, "tag"),
        )
        status, _, _ = answers.ask(Call("DELETE", f"/api/connections/{path_of(row['name'])}"))
        assert status == 204
        closed = pytest.raises(Exception, match=r"320.*Closed via management plugin")
        with closed:
            while True:
                connection.process_data_events(0.1)
    answers.close()


def path_of(name: str) -> str:
    """Return a connection's name as a segment of a path."""
    return name.replace(" ", "%20").replace(">", "%3E")


def test_connections_have_the_fields_that_clients_read(rabbitmq: Server, brokerd: Server) -> None:
    found: list[dict[str, Any]] = []
    for server in (rabbitmq, brokerd):
        answers = Answers(server.http_port)
        with server.connected() as connection:
            name = f":{connection._impl._transport._sock.getsockname()[1]} "

            def mine(answers: Answers = answers, name: str = name) -> Any:
                rows = answers.get("/api/connections")
                return [row for row in rows if name in row["name"] and "peer_port" in row]

            found += eventually(mine, "connection is listed", 60)
        answers.close()
    theirs, ours = ({k: v for k, v in row.items() if k not in ABSENT} for row in found)
    assert missing("overview", theirs, ours) == []


# ---- rabbitmqadmin ------------------------------------------------------------------------------


class Tool:
    """Debian's rabbitmqadmin, with a server."""

    def __init__(self, port: int, folder: Path) -> None:
        self._port = port
        self._folder = folder

    def run(self, line: str) -> tuple[int, str]:
        """Run one command line, in which @ stands for the folder; return status and output, both
        without the server's own names.
        """
        words = line.replace("@", f"{self._folder}/").split()
        done = subprocess.run(
            [str(RABBITMQADMIN), "-P", str(self._port), *words],
            capture_output=True,
            text=True,
            timeout=60,
        )
        text = (done.stdout + done.stderr).replace(str(self._port), "PORT")
        return done.returncode, text.replace(str(self._folder), "FOLDER")


@pytest.fixture
def tools(rabbitmq: Server, brokerd: Server, tmp_path: Path) -> Iterator[tuple[Tool, Tool]]:
    """One for each server."""
    found = []
    for server in (rabbitmq, brokerd):
        folder = tmp_path / server.name
        folder.mkdir()
        found.append(Tool(server.http_port, folder))
    yield found[0], found[1]
    for tool in found:
        for name in ("ra", "ra2"):
            tool.run(f"delete vhost name={name}")


VERBS = """\
declare vhost name=ra
declare vhost name=ra2 tracing=true
declare user name=rau password=p tags=management
declare user name=rah password_hash=kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR tags=
declare permission vhost=ra user=rau configure=.* write=.* read=.*
-V ra declare exchange name=x type=topic
-V ra declare queue name=q
-V ra declare queue name=qq queue_type=quorum
-V ra declare binding source=x destination=q routing_key=a.#
-V ra declare policy name=p pattern=^q definition={"max-length":5} priority=1 apply-to=queues
-V ra declare operator_policy name=op pattern=^q definition={"max-length":9} apply-to=queues
declare vhost_limit vhost=ra name=max-queues value=77
-V ra declare parameter component=federation-upstream name=up value={"uri":"amqp://127.0.0.1:1"}
-V ra publish routing_key=a.b exchange=x payload=hello
-V ra publish routing_key=nowhere exchange=x payload=hello
-V ra publish routing_key=q payload=two properties={"delivery_mode":2}
-V ra get queue=q
-V ra get queue=q ackmode=ack_requeue_false count=1
-V ra get queue=q ackmode=ack_requeue_false count=1 payload_file=@payload
-V ra purge queue name=q
-V ra list exchanges
-V ra -f tsv list bindings source destination destination_type routing_key properties_key
-V ra -f kvp list queues name durable auto_delete
-f raw_json list vhosts name tracing
-f long list permissions
-f bash list users name tags
list vhost_limits
-V ra list policies
list operator_policies
-f tsv list parameters vhost name component
list nodes type
-V ra list consumers
show overview rabbitmq_version
export @all.json
-V ra export @ra.json
-V ra import @ra.json
import @all.json
-V ra delete binding source=x destination_type=queue destination=q properties_key=a.%23
-V ra delete policy name=p
-V ra delete operator_policy name=op
delete vhost_limit vhost=ra name=max-queues
-V ra delete parameter component=federation-upstream name=up
-V ra delete exchange name=x
-V ra delete queue name=q
-V ra delete queue name=none
delete permission vhost=ra user=rau
delete user name=rau
delete user name=rah
close connection name=none
delete vhost name=ra
delete vhost name=ra2
delete vhost name=none
-u guest -p wrong list queues
declare queue
list nonsense"""


def test_rabbitmqadmin_says_the_same_to_both(tools: tuple[Tool, Tool]) -> None:
    if not RABBITMQADMIN.exists():
        pytest.skip("rabbitmqadmin is not installed (apt-get install rabbitmq-server)")
    theirs, ours = tools
    wrong = []
    for line in VERBS.splitlines():
        pair = theirs.run(line), ours.run(line)
        if pair[0] != pair[1]:
            wrong.append(f"{line}\n{pair[0][0]} {pair[0][1]}\n{pair[1][0]} {pair[1][1]}")
    assert not wrong, "\n".join(wrong)


def test_an_export_of_rabbitmq_is_imported_whole(rabbitmq: Server, brokerd: Server) -> None:
    """What a user does who changes over: GET there, POST here."""
    rabbitmq.admin.add_vhost("moving")
    rabbitmq.admin.set_policy("moving", "p", "^a", {"max-length": 5}, "queues")
    rabbitmq.admin.set_vhost_limit("moving", "max-queues", 9)
    theirs, ours = Answers(rabbitmq.http_port), Answers(brokerd.http_port)
    queue = {"durable": True, "arguments": {"x-queue-type": "quorum"}}
    assert theirs.ask(Call("PUT", "/api/queues/moving/a", queue))[0] == 201
    file = theirs.get("/api/definitions")
    # Not what other tests have left at this RabbitMQ.
    file |= {
        section: [row for row in rows if row.get("vhost", row.get("name")) == "moving"]
        for section, rows in file.items()
        if isinstance(rows, list)
    }
    status, _, value = ours.ask(Call("POST", "/api/definitions", json.dumps(file).encode()))
    assert (status, value) == (204, None)
    got = ours.get("/api/definitions/moving")
    for section in ("queues", "policies", "parameters"):
        [mine], [other] = got[section], theirs.get("/api/definitions/moving")[section]
        assert {key: mine[key] for key in other} == other
    # And of the one vhost, which names it nowhere, into another.
    brokerd.admin.add_vhost("moved")
    file = theirs.get("/api/definitions/moving")
    assert ours.ask(Call("POST", "/api/definitions/moved", json.dumps(file).encode()))[0] == 204
    again = ours.get("/api/definitions/moved")
    assert [row["value"] for row in again["parameters"]] == [{"max-queues": 9}]
    assert [row["name"] for row in again["policies"]] == ["p"]
    brokerd.admin.delete_vhost("moved")
    for server in (rabbitmq, brokerd):
        server.admin.delete_vhost("moving")
    theirs.close()
    ours.close()
