"""Operations of one channel on one queue apply in the order of the client's calls.

A client may write a burst in a single piece: publishes, settlements and gets, mixed.  The outcome
is that of the same calls with an answer awaited after each, on every kind of queue and whichever
member the client is at.  RabbitMQ 4 does not promise that of quorum queues.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from brokerd.amqp import methods
from brokerd.amqp.values import Table
from tests.integration import raw_client
from tests.integration.members import Member, cluster

pytestmark = pytest.mark.timeout(600)

#: Histories of each kind of queue; ORDER_SEEDS of the environment for more.
SEEDS = int(os.environ.get("ORDER_SEEDS", "16"))
#: Messages that the channel holds when the burst begins: their tags are known.
HELD = 4
KINDS: dict[str, Table] = {
    "classic": {},
    "classic, refuses": {"x-max-length": 1, "x-overflow": "reject-publish"},
    "classic, drops": {"x-max-length": 2},
    "quorum": {"x-queue-type": "quorum"},
    "quorum, refuses": {
        "x-queue-type": "quorum", "x-max-length": 1, "x-overflow": "reject-publish"
    },
    "quorum, drops": {"x-queue-type": "quorum", "x-max-length": 2, "x-delivery-limit": 1},
}  # fmt: skip
_names = (f"order-{number}" for number in itertools.count(1))

#: A call: what, and the tag or the number of the body.
Call = tuple[str, int]


@dataclass
class Outcome:
    """What a client learns of a history."""

    #: Number of the publish on its channel: was it accepted?
    confirms: dict[int, bool] = field(default_factory=dict)
    #: What each get brought: body and redelivered flag, or nothing.
    gets: list[tuple[bytes, bool] | None] = field(default_factory=list)
    #: What was left in the queue.
    left: list[tuple[bytes, bool]] = field(default_factory=list)


@pytest.fixture(scope="module", params=[1, 3])
def members(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[list[Member]]:
    with cluster(tmp_path_factory.mktemp("order"), request.param) as started:
        yield started


def calls_of(rng: random.Random, kinds: list[str]) -> list[Call]:
    """Return three to twelve calls; every held message is settled once at most."""
    tags = list(range(1, HELD + 1))
    rng.shuffle(tags)
    calls: list[Call] = []
    for number in range(rng.randint(3, 12)):
        what = rng.choice(kinds)
        if what in ("publish", "get"):
            calls.append((what, number))
        elif tags:
            calls.append((what, tags.pop()))
    return calls


def written(queue: str, call: Call) -> bytes:
    what, number = call
    match what:
        case "publish":
            return raw_client.publish(1, "", queue, b"new %d" % number)
        case "get":
            return methods.BasicGet(0, queue, False).encode(1)
        case "ack":
            return methods.BasicAck(number, False).encode(1)
        case _:
            return methods.BasicNack(number, False, what == "requeue").encode(1)


class Channel:
    """One channel of one history."""

    def __init__(self, client: raw_client.RawClient, queue: str) -> None:
        self.client, self.queue = client, queue
        self.outcome = Outcome()

    def read(self, publishes: int, gets: int) -> None:
        """Wait for the answers of so many."""
        outcome = self.outcome
        confirms, answers = len(outcome.confirms) + publishes, len(outcome.gets) + gets
        while len(outcome.confirms) < confirms or len(outcome.gets) < answers:
            found = self.client.next_method()
            assert found is not None
            match found[1]:
                case methods.BasicAck() as ack:
                    self._confirmed(ack.delivery_tag, ack.multiple, True)
                case methods.BasicNack() as nack:
                    self._confirmed(nack.delivery_tag, nack.multiple, False)
                case methods.BasicGetEmpty():
                    outcome.gets.append(None)
                case methods.BasicGetOk() as got:
                    outcome.gets.append((self._body(), bool(got.redelivered)))
                case other:
                    raise AssertionError(other)

    def _confirmed(self, tag: int, multiple: bool, accepted: bool) -> None:
        known = self.outcome.confirms
        first = 1 if multiple else tag
        known.update({each: accepted for each in range(first, tag + 1) if each not in known})

    def _body(self) -> bytes:
        head, body = self.client.next_frame(), self.client.next_frame()
        assert head is not None
        assert body is not None
        return body[2]

    def get(self, no_ack: bool) -> tuple[bytes, bool] | None:
        self.client.send(1, methods.BasicGet(0, self.queue, no_ack))
        self.read(0, 1)
        return self.outcome.gets.pop()


def play(
    member: Member, arguments: Table, calls: list[Call], *, at_once: bool, tx: bool
) -> Outcome:
    """Play the calls on a queue and a channel of their own."""
    with raw_client.client(member.amqp_port) as client:
        client.open(1)
        queue = client.declare(1, next(_names), durable=True, arguments=arguments)
        client.send(1, methods.TxSelect() if tx else methods.ConfirmSelect(False))
        client.expect(methods.TxSelectOk if tx else methods.ConfirmSelectOk)
        channel = Channel(client, queue)
        for number in range(HELD):
            client.send(1, raw_client.publish(1, "", queue, b"old %d" % number))
            _sync(client, tx)
            channel.read(0 if tx else 1, 0)
            assert channel.get(no_ack=False) == (b"old %d" % number, False)
        if at_once:
            commit = methods.TxCommit().encode(1) if tx else b""
            client.send(1, b"".join(written(queue, call) for call in calls) + commit)
            if tx:
                client.expect(methods.TxCommitOk)
            else:
                kinds = [what for what, _ in calls]
                channel.read(kinds.count("publish"), kinds.count("get"))
        else:
            for what, number in calls:
                client.send(1, written(queue, (what, number)))
                if tx:
                    client.count(1, queue)
                else:
                    channel.read(int(what == "publish"), int(what == "get"))
            _sync(client, tx)
        while (left := channel.get(no_ack=True)) is not None:
            channel.outcome.left.append(left)
        client.send(1, methods.QueueDelete(0, queue))
        client.expect(methods.QueueDeleteOk)
    return channel.outcome


def _sync(client: raw_client.RawClient, tx: bool) -> None:
    if tx:
        client.send(1, methods.TxCommit())
        client.expect(methods.TxCommitOk)


@pytest.mark.parametrize("kind", KINDS)
def test_a_burst_ends_as_its_calls_one_by_one(members: list[Member], kind: str) -> None:
    """R-QQ-11, R-ACK-5: publishes, settlements and gets of a channel, mixed."""
    for seed in range(SEEDS):
        rng = random.Random(f"{kind} {seed}")
        calls = calls_of(rng, ["publish", "publish", "ack", "requeue", "reject", "get"])
        member = rng.choice(members)
        one, other = (
            play(member, KINDS[kind], calls, at_once=at_once, tx=False) for at_once in (True, False)
        )
        assert one == other, (seed, calls)


# A commit of which something is refused closes the channel (R-LEN-3).
@pytest.mark.parametrize("kind", [kind for kind in KINDS if "refuses" not in kind])
def test_a_transaction_in_one_write_ends_as_its_calls_one_by_one(
    members: list[Member], kind: str
) -> None:
    """R-TX-3: publishes and settlements up to their commit."""
    for seed in range(SEEDS // 2):
        rng = random.Random(f"tx {kind} {seed}")
        calls = calls_of(rng, ["publish", "publish", "ack", "requeue", "reject"])
        member = rng.choice(members)
        one, other = (
            play(member, KINDS[kind], calls, at_once=at_once, tx=True) for at_once in (True, False)
        )
        assert one == other, (seed, calls)


@pytest.mark.parametrize("first", ["publish", "requeue"])
@pytest.mark.parametrize("kind", ["classic, refuses", "quorum, refuses"])
def test_a_publish_is_refused_by_the_order_of_the_calls(
    members: list[Member], kind: str, first: str
) -> None:
    """R-LEN-3, R-LEN-7: what comes back fills the queue before the publish, or after it."""
    calls = [("publish", 1), ("requeue", 3), ("requeue", 4)]
    if first == "requeue":
        calls = [*calls[1:], calls[0]]
    for member in members:
        outcome = play(member, KINDS[kind], calls, at_once=True, tx=False)
        bodies = [body for body, _ in outcome.left]
        assert outcome.confirms[HELD + 1] == (first == "publish")
        assert bodies == [b"old 2", b"old 3", b"new 1"][: 3 if first == "publish" else 2]
