"""Shovels between two brokerds: each kind of end, ack mode and end of life; what goes wrong."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import pika
import pytest

from tests.integration.federation_rig import Admin, admin, amqp, take, uri
from tests.integration.management.test_brokerctl import Ctl
from tests.integration.members import Member, cluster, eventually

pytestmark = pytest.mark.timeout(300)


@dataclass
class Ends:
    """The cluster that runs the shovels, and another one."""

    here: Member
    there: Member
    admin: Admin

    def shovel(self, name: str, /, **definition: Any) -> None:
        """Set a shovel; underscores stand for hyphens.  Queues are of its own name by default."""
        value: dict[str, Any] = {"reconnect-delay": 0.1}
        value |= {key.replace("_", "-"): item for key, item in definition.items()}
        value.setdefault("src-uri", uri(self.here.amqp_port))
        value.setdefault("dest-uri", uri(self.there.amqp_port))
        if "src-exchange" not in value:
            value.setdefault("src-queue", name)
        self.admin.put("parameter", f"shovel/{name}", {"value": value})

    def row(self, name: str) -> dict[str, Any] | None:
        rows = self.admin.rows("shovels")
        return next((row for row in rows if row["upstream"] == name), None)

    def wait(self, name: str, state: str = "running") -> dict[str, Any]:
        """Wait for a shovel to reach a state; return its row."""

        def found() -> dict[str, Any] | None:
            row = self.row(name)
            return row if row is not None and row["status"] == state else None

        row: dict[str, Any] = eventually(found, f"shovel {name} {state}")
        return row

    def wait_gone(self, name: str) -> None:
        """Wait until a shovel has deleted itself."""
        eventually(
            lambda: f"shovel/{name}" not in self.admin.objects("parameter"), f"{name} is deleted"
        )
        eventually(lambda: self.row(name) is None, f"{name} is not listed any more")


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ends]:
    with (
        cluster(tmp_path_factory.mktemp("here"), 1, BROKERD_CLUSTER_NAME="here") as (here,),
        cluster(tmp_path_factory.mktemp("there"), 1, BROKERD_CLUSTER_NAME="there") as (there,),
        admin(here) as client,
        admin(there) as far,
    ):
        far.put("vhost", "other", {}, "")
        far.put("permission", "guest", {"configure": ".*", "write": ".*", "read": ".*"}, "other")
        yield Ends(here, there, client)


def fill(channel: Any, queue: str, count: int, **properties: Any) -> None:
    """Publish numbered messages to a queue, each confirmed."""
    channel.queue_declare(queue, durable=True)
    for i in range(count):
        channel.basic_publish("", queue, b"%d" % i, pika.BasicProperties(**properties))


def wait_back(member: Member, queue: str, messages: int) -> None:
    """Wait until a queue that was deleted is there again, with so many messages."""

    def is_back() -> bool:
        with (
            contextlib.suppress(pika.exceptions.ChannelClosedByBroker),
            amqp(member.amqp_port) as asker,
        ):
            return count(asker, queue) == messages
        return False

    eventually(is_back, "the queue is back with all messages")


def bodies(channel: Any, queue: str, count: int) -> list[bytes]:
    return [take(channel, queue)[2] for _ in range(count)]


def count(channel: Any, queue: str) -> int:
    answer = channel.queue_declare(queue, passive=True)
    return int(answer.method.message_count)


@pytest.mark.parametrize("ack_mode", ["on-confirm", "on-publish", "no-ack"])
def test_messages_move_from_queue_to_queue_in_order(ends: Ends, ack_mode: str) -> None:
    """Both queues are made where they are missing, durable; what was there is moved, too."""
    name = f"moved-{ack_mode}"
    ends.shovel(
        name,
        dest_queue=f"{name}-far",
        ack_mode=ack_mode,
        dest_uri=[
            uri(ends.there.amqp_port, "other"),
            uri(ends.there.amqp_port, "other"),
        ],
    )
    row = ends.wait(name)
    assert row["vhost"] == "/"
    assert row["uri"] == f"amqp://127.0.0.1:{ends.here.amqp_port}"
    assert row["destination"] == f"amqp://127.0.0.1:{ends.there.amqp_port}/other"
    with amqp(ends.here.amqp_port) as near, amqp(ends.there.amqp_port, "other") as far:
        fill(near, name, 300)
        assert bodies(far, f"{name}-far", 300) == [b"%d" % i for i in range(300)]
        eventually(lambda: ends.row(name)["moved"] == 300, "all are counted")  # type: ignore[index]
        assert count(near, name) == 0
        near.queue_declare(name, durable=True)
        far.queue_declare(f"{name}-far", durable=True)
    ends.admin.delete("parameter", f"shovel/{name}")
    eventually(lambda: ends.row(name) is None, "the shovel has ended")


def test_an_exchange_is_followed_and_the_other_end_gets_its_key(ends: Ends) -> None:
    with amqp(ends.here.amqp_port) as near, amqp(ends.there.amqp_port) as far:
        near.exchange_declare("news", "topic", durable=True)
        far.exchange_declare("press", "direct", durable=True)
        far.queue_declare("press", durable=True)
        far.queue_bind("press", "press", "all")
        ends.shovel(
            "news",
            src_exchange="news",
            src_exchange_key="a.#",
            dest_exchange="press",
            dest_exchange_key="all",
            dest_add_forward_headers=True,
            dest_publish_properties={"app_id": "shovel"},
        )
        ends.wait("news")
        near.basic_publish("news", "b", b"not followed")
        near.basic_publish("news", "a.1", b"followed", pika.BasicProperties(user_id="guest"))
        method, properties, body = take(far, "press")
    assert (method.exchange, method.routing_key, body) == ("press", "all", b"followed")
    assert properties.app_id == "shovel"
    (hop,) = properties.headers["x-shovelled"]
    assert hop["shovelled-by"] == "here"
    assert (hop["src-exchange"], hop["src-exchange-key"]) == ("news", "a.#")
    assert (hop["dest-exchange"], hop["dest-exchange-key"]) == ("press", "all")
    assert "guest" not in json.dumps(hop)


def test_without_a_destination_messages_keep_exchange_and_key(ends: Ends) -> None:
    with amqp(ends.here.amqp_port) as near, amqp(ends.there.amqp_port) as far:
        far.queue_declare("kept", durable=True)
        far.queue_bind("kept", "amq.topic", "k.#")
        near.queue_declare("keeps", durable=True)
        near.queue_bind("keeps", "amq.topic", "k.#")
        ends.shovel("keeps")
        ends.wait("keeps")
        near.basic_publish("amq.topic", "k.1", b"one")
        method, _, body = take(far, "kept")
    assert (method.exchange, method.routing_key, body) == ("amq.topic", "k.1", b"one")


def test_a_uri_without_a_host_is_this_cluster_with_all_rights(ends: Ends) -> None:
    """As with RabbitMQ; the vhost is / where the URI names none."""
    ends.admin.put("vhost", "near", {}, "")
    with amqp(ends.here.amqp_port) as near:
        fill(near, "own", 30, user_id="guest")
        ends.shovel("own", src_uri="amqp://", dest_uri="amqp:///near", dest_queue="own-too")
        row = ends.wait("own")
        assert (row["uri"], row["destination"]) == ("amqp://", "amqp:///near")
        back = {"src_uri": "amqp:///near", "src_queue": "own-too", "dest_uri": "amqp://"}
        ends.shovel("back", **back, dest_queue="own-back")
        ends.wait("back")
        for i in range(30):
            _, properties, body = take(near, "own-back")
            assert (properties.user_id, body) == ("guest", b"%d" % i)


def test_a_uri_without_a_host_may_name_whose_rights_it_has(ends: Ends) -> None:
    """No password is asked: whoever may set shovels may do everything."""
    ends.admin.put("user", "weak", {"password_hash": "", "tags": []}, "")
    rights = {"configure": "^$", "write": "^$", "read": "^may$"}
    with amqp(ends.here.amqp_port) as near:
        fill(near, "may", 3)
        ends.shovel("may", src_uri="amqp://weak@", dest_queue="may-far")
        row = ends.wait("may", "error")
        assert "access to vhost '/' refused for user 'weak'" in row["error"]
        ends.admin.put("permission", "weak", rights)
        ends.wait("may")
        eventually(lambda: count(near, "may") == 0, "messages are moved")
        ends.shovel("must-not", src_uri="amqp://weak@", dest_queue="far")
        assert "ACCESS_REFUSED" in ends.wait("must-not", "error")["error"]
        ends.shovel("nobody", src_uri="amqp://nobody@", dest_queue="far")
        assert "no user 'nobody'" in ends.wait("nobody", "error")["error"]


@pytest.mark.parametrize("ack_mode", ["on-confirm", "on-publish"])
def test_a_shovel_that_empties_a_queue_deletes_itself(ends: Ends, ack_mode: str) -> None:
    name = f"emptied-{ack_mode}"
    with amqp(ends.here.amqp_port) as near, amqp(ends.there.amqp_port) as far:
        fill(near, name, 250)
        ends.shovel(
            name,
            dest_queue=f"{name}-far",
            ack_mode=ack_mode,
            src_prefetch_count=30,
            src_delete_after="queue-length",
        )
        ends.wait_gone(name)
        assert count(far, f"{name}-far") == 250
        assert count(near, name) == 0


def test_a_number_of_messages_is_moved_and_no_more(ends: Ends) -> None:
    """What was delivered beyond them goes back to its place."""
    with amqp(ends.here.amqp_port) as near, amqp(ends.there.amqp_port) as far:
        fill(near, "some", 100)
        ends.shovel("some", dest_queue="some-far", src_delete_after=40)
        ends.wait_gone("some")
        assert bodies(far, "some-far", 40) == [b"%d" % i for i in range(40)]
        assert count(far, "some-far") == 0
        eventually(lambda: count(near, "some") == 60, "the rest is ready again")
        assert bodies(near, "some", 60) == [b"%d" % i for i in range(40, 100)]


def test_an_empty_queue_ends_a_shovel_at_once(ends: Ends) -> None:
    ends.shovel("none", dest_queue="none-far", src_delete_after="queue-length")
    ends.wait_gone("none")


def test_a_wrong_password_is_told_without_it(ends: Ends) -> None:
    wrong = f"amqp://guest:hunter2@127.0.0.1:{ends.there.amqp_port}"
    ends.shovel("wrong", dest_queue="wrong", dest_uri=wrong)
    row = ends.wait("wrong", "error")
    assert "ACCESS_REFUSED" in row["error"]
    assert "hunter2" not in json.dumps(ends.admin.rows("shovels"))
    assert "hunter2" not in json.dumps(ends.admin.objects("parameter"))
    # Whoever sets it right is heard at once.
    ends.shovel("wrong", dest_queue="wrong")
    ends.wait("wrong")


def test_a_missing_exchange_keeps_messages_where_they_are(ends: Ends) -> None:
    with amqp(ends.here.amqp_port) as near, amqp(ends.there.amqp_port) as far:
        fill(near, "waits", 3)
        ends.shovel("waits", dest_exchange="not-there")
        row = ends.wait("waits", "error")
        assert "no exchange 'not-there'" in row["error"]
        assert count(near, "waits") == 3
        far.queue_declare("came", durable=True)
        far.exchange_declare("not-there", "fanout", durable=True)
        far.queue_bind("came", "not-there")
        assert bodies(far, "came", 3) == [b"0", b"1", b"2"]


def test_a_queue_that_is_to_be_there_is_waited_for_and_not_made(ends: Ends) -> None:
    """At each end: `src-predeclared` and `dest-predeclared`, as RabbitMQ 4 has them."""
    keys = {"dest_queue": "came-later", "src_predeclared": True, "dest_predeclared": True}
    with amqp(ends.here.amqp_port) as near, amqp(ends.there.amqp_port) as far:
        ends.shovel("made-later", **keys)
        assert "no queue '" in ends.wait("made-later", "error")["error"]
        assert "made-later" not in ends.admin.objects("queue")
        fill(near, "made-later", 2)
        again = eventually(
            lambda: (row := ends.row("made-later")) and "came-later" in row["error"] and row,
            "the destination is missed",
        )
        assert again["status"] == "error"
        assert count(near, "made-later") == 2
        far.queue_declare("came-later", durable=True)
        assert bodies(far, "came-later", 2) == [b"0", b"1"]


@pytest.mark.parametrize("ack_mode", ["on-confirm", "on-publish", "no-ack"])
def test_what_no_queue_takes_is_kept_and_the_others_go_on(ends: Ends, ack_mode: str) -> None:
    """Of messages that are alike but for their key; nothing comes twice, and the order holds."""
    exchange, name = f"sorts-{ack_mode}", f"sorted-{ack_mode}"
    with amqp(ends.here.amqp_port) as near, amqp(ends.there.amqp_port) as far:
        far.exchange_declare(exchange, "direct", durable=True)
        for key in ("even", "odd"):
            far.queue_declare(f"{name}-{key}", durable=True)
        far.queue_bind(f"{name}-even", exchange, "even")
        near.queue_declare(name, durable=True)
        near.exchange_declare(exchange, "fanout", durable=True)
        near.queue_bind(name, exchange)
        for i in range(200):
            near.basic_publish(exchange, "odd" if i % 2 else "even", b"%d" % (i // 2))
        ends.shovel(name, dest_exchange=exchange, ack_mode=ack_mode, dest_unroutable="keep")
        assert bodies(far, f"{name}-even", 100) == [b"%d" % i for i in range(100)]
        row = ends.wait(name, "unroutable")
        assert f"exchange '{exchange}', routing key 'odd'" in row["error"]
        eventually(lambda: (ends.row(name) or {}).get("unrouted") == 100, "all odd ones are held")
        far.queue_bind(f"{name}-odd", exchange, "odd")
        assert bodies(far, f"{name}-odd", 100) == [b"%d" % i for i in range(100)]
        row = ends.wait(name)
        assert (row["moved"], row["unroutable"], row["unrouted"]) == (200, 100, 0)
        ends.admin.delete("parameter", f"shovel/{name}")
        eventually(lambda: ends.row(name) is None, "it has ended")
        assert (count(near, name), count(far, f"{name}-even"), count(far, f"{name}-odd")) == (
            *(0, 0, 0),
        )


def test_what_is_kept_is_in_the_source_when_the_shovel_is_deleted(ends: Ends) -> None:
    """And what may be dropped is not, with a figure that says so."""
    with amqp(ends.here.amqp_port) as near, amqp(ends.there.amqp_port) as far:
        far.exchange_declare("nowhere", "fanout", durable=True)
        fill(near, "stays", 3)
        ends.shovel("stays", dest_exchange="nowhere")
        ends.wait("stays", "unroutable")
        ends.admin.delete("parameter", "shovel/stays")
        eventually(lambda: count(near, "stays") == 3, "they are ready again")
        ends.shovel("stays", dest_exchange="nowhere", dest_unroutable="drop")
        eventually(lambda: (ends.row("stays") or {}).get("unroutable_dropped") == 3, "counted")
        assert ends.wait("stays")["moved"] == 0
        assert count(near, "stays") == 0
        url = f"http://127.0.0.1:{ends.here.http_port}/metrics"
        with urllib.request.urlopen(url) as answer:
            assert b'brokerd_messages_dropped_total{cause="shovel_unroutable"} 3.0' in answer.read()


def test_a_destination_that_refuses_loses_nothing(ends: Ends) -> None:
    """reject-publish: what is refused goes back, and comes when there is room."""
    with amqp(ends.here.amqp_port) as near, amqp(ends.there.amqp_port) as far:
        fill(near, "full", 20)
        ends.shovel(
            "full",
            dest_queue="full-far",
            dest_queue_args={"x-max-length": 5, "x-overflow": "reject-publish"},
            src_prefetch_count=5,
        )
        eventually(lambda: (ends.row("full") or {}).get("refused", 0) > 0, "some are refused")
        got = sorted(int(body) for body in bodies(far, "full-far", 20))
        assert got == list(range(20))
        eventually(lambda: count(near, "full") == 0, "nothing is left")


def test_a_deleted_destination_queue_is_made_again(ends: Ends) -> None:
    with amqp(ends.here.amqp_port) as near, amqp(ends.there.amqp_port) as far:
        ends.shovel("again", dest_queue="again-far")
        ends.wait("again")
        far.queue_delete("again-far")
        fill(near, "again", 50)
        wait_back(ends.there, "again-far", 50)


def test_brokerctl_shows_restarts_and_deletes_a_shovel(ends: Ends) -> None:
    """In the words of rabbitmqctl; the figures are in the metrics, too."""

    def brokerctl(*words: str, status: int = 0) -> str:
        done = Ctl(f"127.0.0.1:{ends.here.grpc_port}").run("-q", *words)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    definition = {"src-uri": "amqp://", "src-queue": "c", "dest-uri": "amqp://", "dest-queue": "d"}
    brokerctl("set_parameter", "shovel", "by hand", json.dumps(definition))
    ends.wait("by hand")
    with amqp(ends.here.amqp_port) as near:
        fill(near, "c", 7)
        bodies(near, "d", 7)

    def row() -> dict[str, Any]:
        rows = json.loads(brokerctl("--formatter", "json", "shovel_status"))
        return next(dict(row) for row in rows if row["name"] == "by hand")

    eventually(lambda: row()["messages_moved"] == 7, "all are counted")
    shown = row()
    assert (shown["type"], shown["state"], shown["vhost"]) == ("dynamic", "running", "/")
    assert (shown["source"], shown["source_queue"]) == ("amqp://", "c")
    assert (shown["destination_protocol"], shown["destination_queue"]) == ("amqp091", "d")
    assert "by hand" in brokerctl("shovel_status")
    assert "by hand" not in brokerctl("list_links")
    url = f"http://127.0.0.1:{ends.here.http_port}/metrics"
    with urllib.request.urlopen(url) as answer:
        assert b'brokerd_shovels{state="running"}' in answer.read()
    brokerctl("restart_shovel", "by hand")
    eventually(lambda: row()["messages_moved"] == 0, "another one runs")
    ends.wait("by hand")
    text = "Shovel with the given name was not found"
    assert text in brokerctl("restart_shovel", "no-such", status=69)
    assert text in brokerctl("delete_shovel", "no-such", status=69)
    brokerctl("delete_shovel", "by hand")
    eventually(lambda: ends.row("by hand") is None, "it has ended")
    refused = brokerctl("set_parameter", "shovel", "by hand", '{"src-uri": "amqp://"}', status=69)
    assert "Validation failed" in refused


@pytest.mark.parametrize(
    ("definition", "text"),
    [
        ({"zork": 1}, "unknown key 'zork'"),
        ({"src_protocol": "amqp10"}, "src-protocol 'amqp10' is not supported"),
        ({"dest_queue": "a", "dest_exchange": "b"}, "cannot specify"),
        ({"ack_mode": "no-ack", "src_delete_after": "queue-length"}, "cannot specify 'no-ack'"),
    ],
)
def test_what_cannot_be_used_is_refused(ends: Ends, definition: dict[str, Any], text: str) -> None:
    with pytest.raises(AssertionError, match=text):
        ends.shovel("refused", **definition)
    assert "shovel/refused" not in ends.admin.objects("parameter")
    with contextlib.suppress(grpc.RpcError):
        assert ends.row("refused") is None
