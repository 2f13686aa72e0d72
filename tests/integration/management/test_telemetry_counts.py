"""What a real member counts, as the telemetry job reads it: copies, the ways of dead letters, and
the findings that a job hands back.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pika
import pytest
from brokerd_telemetry import sources

from brokerd.rpc.v1 import admin_pb2, admin_pb2_grpc
from tests.integration.grpc.test_admin_grpc import Admin, put
from tests.integration.members import Member, cluster, eventually

pytestmark = pytest.mark.timeout(240)

QUORUM = {"x-queue-type": "quorum"}


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    with cluster(tmp_path_factory.mktemp("counts"), 1) as members:
        yield members[0]


def access(member: Member) -> sources.Access:
    return sources.Access((f"127.0.0.1:{member.grpc_port}",))


def told(member: Member, raw: Path) -> list[dict[str, Any]]:
    """All rows up to now, as a job pulls them, of all members that this one knows."""
    sources.pull(access(member), raw, set(), print)
    return [
        {**json.loads(line), "member": path.partition("/node=")[2].partition("/")[0]}
        for path in sources.listed(raw)
        for line in gzip.decompress((raw / path).read_bytes()).splitlines()
    ]


def total(rows: list[dict[str, Any]], kind: str, name: str) -> int:
    return sum(row.get(name, 0) for row in rows if row["k"] == kind)


def test_copies_are_what_queues_take_and_letters_name_where_they_went(
    member: Member, tmp_path: Path
) -> None:
    """With a ring of dead letters, replies, fan-out, at-least-once letters, and a live cluster."""
    with member.connect() as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        sure = {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
        for name, target, more in (("a", "b", {}), ("b", "a", {}), ("sure", "plain", sure)):
            letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": target}
            channel.queue_declare(name, durable=True, arguments={**QUORUM, **letters, **more})
        channel.queue_declare("plain", durable=True)
        channel.exchange_declare("all", "fanout")
        for name in ("a", "plain"):
            channel.queue_bind(name, "all")
        channel.basic_consume("amq.rabbitmq.reply-to", lambda *_: None, auto_ack=True)
        for _ in range(5):
            channel.basic_publish("all", "", b"m")
            channel.basic_publish("", "sure", b"m")
        channel.basic_publish(
            "", "plain", b"ask", pika.BasicProperties(reply_to="amq.rabbitmq.reply-to")
        )

        def asked() -> Any:
            # Behind the five of the fan-out.
            _, properties, body = channel.basic_get("plain", auto_ack=True)
            return properties.reply_to if body == b"ask" else None

        reply_to = eventually(asked, "the request")
        channel.basic_publish("", reply_to, b"answer")
        for source in ("a", "b", "a", "sure"):
            for _ in range(5):
                tag = eventually(lambda source=source: got(channel, source), source)
                channel.basic_reject(tag, requeue=False)
        eventually(lambda: depth(channel, "b") == 5 and depth(channel, "plain") == 5, "letters")
        rows = told(member, tmp_path)
    assert total(rows, "exchange", "copies") == total(rows, "queue", "enq") == 5 * 3 + 1 + 5 * 4
    # Six gets of "plain", twenty before the rejections, and the reply.
    assert total(rows, "principal", "out") == 6 + 20 + 1
    ways = {(row["queue"], *row["targets"], row["strategy"]): 0 for row in rows if row["k"] == "dl"}
    for row in rows:
        if row["k"] == "dl":
            ways[row["queue"], *row["targets"], row["strategy"]] += row["n"]
    assert ways == {
        ("a", "b", "at-most-once"): 10,
        ("b", "a", "at-most-once"): 5,
        ("sure", "plain", "at-least-once"): 5,
    }


def test_one_member_tells_what_is_declared_and_what_was_given_up(tmp_path: Path) -> None:
    """8.5, 8.13, 8.14, in a cluster: whoever leads the catalog tells of policies and exchanges."""
    with cluster(tmp_path, 3) as members:
        with members[1].connect() as connection:
            channel = connection.channel()
            channel.exchange_declare("lonely", "topic", durable=True)
            channel.queue_declare("dead", durable=True)
            letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
            limited = {**QUORUM, "x-delivery-limit": 2}
            for queue, arguments in (("orders", {**limited, **letters}), ("nowhere", limited)):
                channel.queue_declare(queue, durable=True, arguments=arguments)
                channel.basic_publish("", queue, b"a secret", pika.BasicProperties(type="broken"))
                for _ in range(3):
                    tag = eventually(partial(got, channel, queue), "the message")
                    channel.basic_nack(tag, requeue=True)
            eventually(lambda: depth(channel, "dead") == 1, "the letter")
        policy = {"pattern": "^nothing$", "apply-to": "queues", "definition": {"max-length": 5}}
        assert Admin(members[0].grpc_port).code(put("policy", "nobodys", policy)) == 0
        rows: list[dict[str, Any]] = []

        def is_told() -> bool:
            rows[:] = told(members[0], tmp_path / "raw")
            has_policy = any(row["k"] == "policy" for row in rows)
            return has_policy and len({row["member"] for row in rows}) == 3

        eventually(is_told, "the policy")
    (policy_row,) = [row for row in rows if row["k"] == "policy"]
    assert (policy_row["policy"], policy_row["matched"], policy_row["whole"]) == (
        "nobodys",
        {},
        True,
    )
    (exchange,) = [row for row in rows if row["k"] == "topo" and row["kind"] == "exchange"]
    assert (exchange["exchange"], exchange["bindings"]) == ("lonely", 0)
    assert {row["member"] for row in rows if row["k"] == "topo"} == {policy_row["member"]}
    given_up = sorted(
        (row["queue"], row["n"], row["tries"], row["ended"]) for row in rows if row["k"] == "redel"
    )
    # One that has no letter is told too, by whoever leads its queue.
    assert given_up == [("nowhere", 1, 3, "dropped"), ("orders", 1, 3, "routed")]
    fingerprints = {row["fp"] for row in rows if row["k"] == "redel"}
    assert len(fingerprints) == 2
    assert "" not in fingerprints
    assert "secret" not in json.dumps(rows)


def got(channel: Any, queue: str) -> int | None:
    method, _, _ = channel.basic_get(queue)
    return None if method is None else int(method.delivery_tag)


def depth(channel: Any, queue: str) -> int:
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def test_findings_are_handed_back_and_listed(member: Member) -> None:
    """What is no document, or too large a one, is nothing."""
    address = f"127.0.0.1:{member.grpc_port}"
    with grpc.insecure_channel(address) as channel:
        stub = admin_pb2_grpc.AdminStub(channel)  # type: ignore[no-untyped-call]

        def listed() -> list[dict[str, Any]]:
            pages = stub.List(
                admin_pb2.ListRequest(kind="findings"), metadata=access(member).metadata()
            )
            return [json.loads(row) for page in pages for row in page.rows]

        assert listed() == []
        document = {"run_id": "r", "as_of_us": 7, "findings": [{"rule": "DL-LOST"}]}
        for data, found in (
            (json.dumps(document).encode(), [document]),
            (b"[1]", []),
            (b"\xff{", []),
            (b"[" * 100_000, []),
            (json.dumps({"x": "y" * 3_000_000}).encode(), []),
        ):
            assert sources.put_results(access(member), {"findings.json": data}, print) == 1
            assert listed() == found
