"""Commands and replies of the queue machine, as bytes in the log and on the peer stream.

First byte: format version; second: kind.  Commands of the hot path (enqueue, in
enqueue_commands.py; settle, return, discard) are packed, one per batch; the others carry JSON,
where clarity is worth more than nanoseconds.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from enum import IntEnum
from functools import lru_cache
from typing import Any

import orjson

from brokerd.core.message import Range
from brokerd.core.queue.certificates import NO_DETAILS, Client, Details
from brokerd.core.queue.client_shapes import Checkout
from brokerd.core.queue.effects import ConsumerId, Run
from brokerd.core.queue_options import QueueOptions
from brokerd.core.ranges import normalize

VERSION = 1

#: What a channel's client was sent of a queue and has not settled, by consumer tag.
Written = Mapping[str, Sequence[Range]]

#: Commands of basic.get that are kept as bytes: each channel that gets repeats the same one.
GETS_KEPT = 256
#: Consumers whose part of a settlement is kept, as bytes and as what they mean: each settles again
#: and again.
CONSUMERS_KEPT = 1024
#: Ranges of messages that a channel's end names for each consumer; some 100 KiB as JSON.
WRITTEN_MAX = 4096


class Kind(IntEnum):
    """The second byte of a command."""

    ENQUEUE = 1
    SETTLE = 2
    RETURN = 3
    DISCARD = 4
    CHECKOUT = 5
    CANCEL = 6
    RESUME = 7
    GET = 8
    PURGE = 9
    DELETE = 10
    CHANNEL_DOWN = 11
    NODE_DOWN = 12
    NODE_UP = 13
    UPDATE_OPTIONS = 14
    TICK = 15
    DEAD_LETTERS_CHECKOUT = 16
    DEAD_LETTERS_SETTLE = 17
    DECLARED = 18
    #: Another command in an envelope (client_sessions.py).
    ONCE = 19
    PUBLISHERS_ENDED = 20
    JOINED_SETTLEMENTS = 21
    DEAD_LETTERS_DISCARD = 22
    JOB_START = 23
    JOB_TAKE = 24
    JOB_SETTLE = 25
    JOB_STOP = 26
    JOB_END = 27


class ReturnCause(IntEnum):
    """Why messages come back; what counts against the delivery limit depends on it (R-DL-2)."""

    NACK = 1
    REJECT = 2
    RECOVER = 3
    #: The member has not written it to the client: it returns as if it had never left (ADR 69).
    UNWRITTEN = 4
    #: The same, of a client that has withdrawn its credit: what was spent on it is not given again.
    WITHDRAWN = 5


_HEAD = struct.Struct("<BB")
_PAIR_COUNT = struct.Struct("<I")
_U64x2 = struct.Struct("<QQ")
_ENDED = struct.Struct("<BBBQI")
#: The most frequent settlement: one range.
_ONE_PAIR = struct.Struct("<IQQ")


def encode_ranges(
    kind: Kind,
    consumer: ConsumerId,
    ranges: Sequence[Range],
    cause: int = 0,
    details: Details = NO_DETAILS,
) -> bytes:
    """Encode SETTLE, RETURN (with a ReturnCause) or DISCARD of number ranges [low, high).

    details: of the last two.
    """
    head = _ranges_head(kind, consumer, cause)
    tail = b"" if details == NO_DETAILS else _details(details)
    if len(ranges) == 1:
        low, high = ranges[0]
        return head + _ONE_PAIR.pack(1, low, high) + tail
    flat = [number for pair in ranges for number in pair]
    return head + struct.pack(f"<I{len(flat)}Q", len(ranges), *flat) + tail


def _details(details: Details) -> bytes:
    return json.dumps(details, separators=(",", ":")).encode()


@lru_cache(CONSUMERS_KEPT)
def _ranges_head(kind: Kind, consumer: ConsumerId, cause: int) -> bytes:
    node, tag = consumer.node.encode(), consumer.tag.encode("utf-8", "surrogateescape")
    sizes = bytes((cause, len(node), len(tag)))
    numbers = _U64x2.pack(consumer.incarnation, consumer.channel)
    return b"".join((_HEAD.pack(VERSION, kind), sizes, node, tag, numbers))


def decode_ranges(data: bytes) -> tuple[ConsumerId, list[Range], int]:
    """Decode what encode_ranges made: consumer, ranges, cause."""
    cause, node_size, tag_size = data[2], data[3], data[4]
    at = 5 + node_size + tag_size + _U64x2.size
    # First: compiled, a slice that begins behind the end is a SystemError.
    (pairs,) = _PAIR_COUNT.unpack_from(data, at)
    consumer = _consumer_of(data[5:at], node_size)
    if pairs == 1:
        return consumer, [_U64x2.unpack_from(data, at + 4)], cause
    flat = struct.unpack_from(f"<{2 * pairs}Q", data, at + 4)
    return consumer, list(zip(flat[::2], flat[1::2], strict=True)), cause


def decode_details(data: bytes) -> Any:
    """Return what stands behind the ranges, as JSON has it; None: nothing."""
    at = 5 + data[3] + data[4] + _U64x2.size
    (pairs,) = _PAIR_COUNT.unpack_from(data, at)
    at += _PAIR_COUNT.size + pairs * _U64x2.size
    return json.loads(data[at:]) if at < len(data) else None


@lru_cache(CONSUMERS_KEPT)
def _consumer_of(data: bytes, node_size: int) -> ConsumerId:
    numbers_at = len(data) - _U64x2.size
    incarnation, channel = _U64x2.unpack_from(data, numbers_at)
    tag = data[node_size:numbers_at].decode("utf-8", "surrogateescape")
    return ConsumerId(data[:node_size].decode(), incarnation, channel, tag)


def _json(kind: Kind, fields: dict[str, Any]) -> bytes:
    return _HEAD.pack(VERSION, kind) + json.dumps(fields, separators=(",", ":")).encode()


def encode_checkout(checkout: Checkout) -> bytes:
    """Register a consumer.  Reply: JSON {"ok": true} or {"refused": code, "text": …}; one that
    drains also has the "credit" that was left.
    """
    fields = asdict(checkout)
    for name in ("drains", "client"):
        if not fields[name]:
            del fields[name]
    return _json(Kind.CHECKOUT, fields)


def encode_cancel(consumer: ConsumerId) -> bytes:
    """Remove a consumer; its unacked messages stay with the channel (R-CS-3)."""
    return _json(Kind.CANCEL, {"consumer": consumer})


def encode_resume(consumer: ConsumerId, held: Sequence[Range]) -> bytes:
    """After a leader change: what the consumer's node holds; the rest of its checkout is sent
    again.
    """
    return _json(Kind.RESUME, {"consumer": consumer, "held": held})


@lru_cache(maxsize=GETS_KEPT)
def encode_get(consumer: ConsumerId, no_ack: bool) -> bytes:
    """basic.get (tag "").  Reply: JSON {"run": [six numbers of Run] or null, "ready": count}; the
    driver appends the content for a remote caller."""
    return _json(Kind.GET, {"consumer": consumer, "no_ack": no_ack})


#: How an answer to GET begins that brings a message.
_GET_REPLY = b'{"run":['


def encode_get_reply(run: Run | None, ready: int) -> bytes:
    """Answer GET: what was taken, and how many are left."""
    return orjson.dumps({"run": run and list(run), "ready": ready})


def decode_get_reply(data: bytes) -> tuple[Run, int] | None:
    """Return what GET took and how many are left; None: nothing, or refused (see decode_reply)."""
    if not data.startswith(_GET_REPLY):
        return None
    # The standard library takes as long as all that the queue does for a get.
    fields = orjson.loads(data)
    return tuple.__new__(Run, fields["run"]), fields["ready"]


def encode_purge() -> bytes:
    """Remove ready messages.  Reply: JSON {"messages": count}."""
    return _json(Kind.PURGE, {})


def encode_delete(if_empty: bool, if_unused: bool, cause: str) -> bytes:
    """End the queue.  Reply: JSON {"deleted": bool, "messages": ready, "consumers": count}."""
    return _json(Kind.DELETE, {"if_empty": if_empty, "if_unused": if_unused, "cause": cause})


def encode_channel_down(
    node: str,
    incarnation: int,
    channel: int,
    written: Written | None = None,
    client: Client | None = None,
) -> bytes:
    """A channel ended: its consumers go, its messages return and count as such (R-DL-2).

    What its consumers hold besides `written` returns as it was (ADR 69).  None: all of it counts.
    client: of what it got by basic.get.
    """
    fields: dict[str, Any] = {"node": node, "incarnation": incarnation, "channel": channel}
    if written is not None:
        fields["written"] = [(tag, _bounded(ranges)) for tag, ranges in written.items()]
    if client is not None:
        fields["client"] = client
    return _json(Kind.CHANNEL_DOWN, fields)


def _bounded(ranges: Sequence[Range]) -> Sequence[Range]:
    """Return no more than WRITTEN_MAX ranges that cover at least these: rather one message too
    many counts than that a command grows without end.
    """
    if len(ranges) <= WRITTEN_MAX:
        return ranges
    known = normalize(ranges)
    last = known[WRITTEN_MAX - 1 :]
    return [*known[: WRITTEN_MAX - 1], (last[0][0], last[-1][1])]


def encode_publishers_ended(node: str, incarnation: int, channels: Sequence[int]) -> bytes:
    """Channels of a member ended that had nothing from the queue: it forgets their numbers.  Twice
    is as once (ADR 62).
    """
    name, count = node.encode(), len(channels)
    head = _ENDED.pack(VERSION, Kind.PUBLISHERS_ENDED, len(name), incarnation, count)
    return b"".join((head, name, struct.pack(f"<{count}Q", *channels)))


def decode_publishers_ended(data: bytes) -> tuple[str, int, Sequence[int]]:
    """Return node, incarnation and channels; struct.error or UnicodeDecodeError if it is none."""
    _, _, size, incarnation, count = _ENDED.unpack_from(data)
    at = _ENDED.size + size
    channels = struct.unpack_from(f"<{count}Q", data, at)
    return data[_ENDED.size : at].decode(), incarnation, channels


def encode_node_down(node: str) -> bytes:
    """A node is suspected: its messages return after disconnected_timeout_ms (R-QQ-16)."""
    return _json(Kind.NODE_DOWN, {"node": node})


def encode_node_up(node: str, incarnation: int, *, leads: bool = False) -> bytes:
    """A node is heard again; consumers of its earlier incarnations are gone.

    leads: it leads the queue from now on.  If consumers of an earlier incarnation are still known,
    that one was killed, and with it may be gone what it had not written (ADR 23).
    """
    fields: dict[str, Any] = {"node": node, "incarnation": incarnation}
    return _json(Kind.NODE_UP, fields | {"leads": True} if leads else fields)


def encode_update_options(options: QueueOptions) -> bytes:
    """Set the effective options; length limits trim at once (R-LEN-10)."""
    return _json(Kind.UPDATE_OPTIONS, asdict(options))


def encode_tick() -> bytes:
    """Look at time: expiry, queue expiry, disconnected consumers.

    Reply: JSON {"ok": true, "takers": whether a consumer could have a message now}.
    """
    return _json(Kind.TICK, {})


def encode_declared() -> bytes:
    """Someone declared the queue again (R-Q-3, R-Q-11).

    Reply: JSON {"ready": count, "consumers": count}, of a quorum queue also {"holders": count}
    where a basic.get or a cancelled consumer still holds something.
    """
    return _json(Kind.DECLARED, {})


def encode_dead_letters_checkout(count: int) -> bytes:
    """Take up to `count` waiting dead letters that are not yet taken in this term.

    Reply: JSON {"letters": [{"run": [six numbers], "reason": …, "time_ms": …}], "exchange": …,
    "routing_key": …}.
    """
    return _json(Kind.DEAD_LETTERS_CHECKOUT, {"count": count})


def encode_dead_letters_settle(ranges: Sequence[Range]) -> bytes:
    """All targets of these dead letters have confirmed: they leave the queue (R-ALO-5)."""
    return _json(Kind.DEAD_LETTERS_SETTLE, {"ranges": ranges})


def encode_dead_letters_discard() -> bytes:
    """Give up the dead letters that wait.

    Reply: JSON {"messages": count}.
    """
    return _json(Kind.DEAD_LETTERS_DISCARD, {})


def encode_job_start(order: str, user: str) -> bytes:
    """Begin a job of a user's, which covers all that is in the queue now.

    Reply: JSON {"ok": true, "id": its number} or {"refused": 406, "text": …} while one is under
    way.
    """
    return _json(Kind.JOB_START, {"order": order, "user": user})


def encode_job_take(
    job: int, term: int, ranges: Sequence[Range], *, waiting: bool = False
) -> bytes:
    """Take messages in hand: of these, those that are ready and that the job covers.

    term: in which the worker's leader leads; others are not heard.  waiting: of those instead that
    wait until they are due, in the queue of an exchange that delays or after a return.
    Reply: JSON {"taken": [[low, high], …]}.
    """
    fields: dict[str, Any] = {"id": job, "term": term, "ranges": ranges}
    return _json(Kind.JOB_TAKE, fields | {"waiting": True} if waiting else fields)


def encode_job_settle(
    job: int,
    term: int,
    gone: Sequence[Range],
    staying: Sequence[Range] = (),
    progress: str | None = None,
) -> bytes:
    """All targets of `gone` have confirmed, or they are deleted: they leave the queue.

    staying: are ready again, where they were, or wait again until they are due; one whose key
    another message has got in the meantime goes away as replaced ones do.  progress: what the next
    leader's worker goes on with; None: as it was.
    """
    fields: dict[str, Any] = {"id": job, "term": term, "gone": gone, "staying": staying}
    return _json(Kind.JOB_SETTLE, fields if progress is None else fields | {"progress": progress})


def encode_job_stop(user: str) -> bytes:
    """Have the job take nothing more.

    Reply: JSON {"ok": true, "id": its number} or {"refused": 404, "text": …}.
    """
    return _json(Kind.JOB_STOP, {"user": user})


def encode_job_end(job: int, term: int, receipt: str) -> bytes:
    """The job is over.  What it still holds comes back as what stays does."""
    return _json(Kind.JOB_END, {"id": job, "term": term, "receipt": receipt})


def decode_json(data: bytes) -> dict[str, Any]:
    """Return the fields of a JSON command."""
    fields: dict[str, Any] = json.loads(data[2:])
    return fields


def decode_reply(data: bytes) -> dict[str, Any]:
    """Return the fields of a JSON reply."""
    fields: dict[str, Any] = json.loads(data)
    return fields
