"""What the shape of a PublishRequest costs both sides (ADR 73).

    python -m bench.micro_requests [--size BYTES]

Requests of a hundred publications, as they are, and as heads and bodies
(`{first_sequence, heads[], head_of[], bodies[]}`): µs of CPU a message, to make and encode one in
Python, and to read it as the member does: by publication_reader.py, by protobuf alone, and heads
and bodies by protobuf.  `ids` have a message_id each, in requests that are not read twice.  Prints
a Markdown table.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from brokerd import compiled
from brokerd.rpc.v1 import messages_pb2 as messages
from brokerd.server.grpc import publication_reader
from brokerd.server.grpc.publication_reader import Alike, PublicationReader

COUNT = 100
KINDS = ("no properties", "alike", "ids")
#: Requests of a kind, in turn; with ids more heads than a reader remembers.
REQUESTS = 8
ROUNDS, ROUND_S = 5, 0.2
BODY_BYTES_MAX = 1 << 24


def heads_and_bodies() -> Any:
    """Return the class of the other request."""
    file = descriptor_pb2.FileDescriptorProto(
        name="bench/heads.proto", package="bench", syntax="proto3"
    )
    file.dependency.append("brokerd/rpc/v1/messages.proto")
    one, many = (
        descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL,
        descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED,
    )
    types = descriptor_pb2.FieldDescriptorProto
    head = file.message_type.add(name="Head")
    head.field.add(name="exchange", number=1, label=one, type=types.TYPE_STRING)
    head.field.add(name="routing_key", number=2, label=one, type=types.TYPE_STRING)
    head.field.add(
        name="properties",
        number=3,
        label=one,
        type=types.TYPE_MESSAGE,
        type_name=".brokerd.v1.Properties",
    )
    request = file.message_type.add(name="Request")
    request.field.add(name="first_sequence", number=1, label=one, type=types.TYPE_UINT64)
    request.field.add(
        name="heads", number=2, label=many, type=types.TYPE_MESSAGE, type_name=".bench.Head"
    )
    request.field.add(name="head_of", number=3, label=many, type=types.TYPE_UINT32)
    request.field.add(name="bodies", number=4, label=many, type=types.TYPE_BYTES)
    pool = descriptor_pool.Default()
    pool.Add(file)  # type: ignore[no-untyped-call]
    found = pool.FindMessageTypeByName("bench.Request")  # type: ignore[no-untyped-call]
    return message_factory.GetMessageClass(found)


REQUEST = heads_and_bodies()


def properties(kind: str, number: int) -> Any:
    """Return what a message has."""
    if kind == KINDS[0]:
        return None
    made = messages.Properties(content_type="application/json", delivery_mode=2)
    made.headers["tenant"].text = "acme"
    if kind == "ids":
        made.message_id = f"id-{number:08}"
    return made


def publications(kind: str, body: bytes, first: int) -> bytes:
    """Make a request as they are."""
    return messages.PublishRequest(
        publications=[
            messages.Publication(
                sequence=number, routing_key="bench", properties=properties(kind, number), body=body
            )
            for number in range(first, first + COUNT)
        ]
    ).SerializeToString()


def heads(kind: str, body: bytes, first: int) -> bytes:
    """Make one of heads and bodies; without `head_of` all have the first head."""
    made = REQUEST(first_sequence=first, bodies=[body] * COUNT)
    for number in range(first, first + COUNT) if kind == "ids" else (first,):
        made.heads.add(routing_key="bench", properties=properties(kind, number))
    if kind == "ids":
        made.head_of.extend(range(COUNT))
    encoded: bytes = made.SerializeToString()
    return encoded


def read_by_reader(reader: PublicationReader, request: bytes) -> list[Alike]:
    """Read it as the member does."""
    found: list[Alike] = []
    reader.read(request, found)
    return found


def read_publications(request: bytes) -> list[Alike]:
    """Read it with an object for each publication."""
    found: list[Alike] = []
    last: Any = None
    for item in messages.PublishRequest.FromString(request).publications:
        looks = item.exchange, item.routing_key, item.properties, item.mandatory
        if last != looks:
            last = looks
            found.append(Alike(publication_reader._head_of(item, item.mandatory), item.sequence))
        found[-1].bodies.append(item.body)
        found[-1].size += len(item.body)
    return found


def read_heads(request: bytes) -> list[Alike]:
    """Read heads and bodies."""
    made = REQUEST.FromString(request)
    known = []
    for head in made.heads:
        item = messages.Publication(exchange=head.exchange, routing_key=head.routing_key)
        item.properties.CopyFrom(head.properties)
        known.append(publication_reader._head_of(item, False))
    bodies = list(made.bodies)
    if not made.head_of:
        return [Alike(known[0], made.first_sequence, bodies, sum(map(len, bodies)))]
    return [
        Alike(known[head], sequence, [body], len(body))
        for sequence, head, body in zip(
            itertools.count(made.first_sequence), made.head_of, bodies, strict=False
        )
    ]


def cost_us(work: Callable[[], object]) -> float:
    """Return the CPU of a message, the best round's."""
    best = float("inf")
    for _ in range(ROUNDS):
        count, began_s = 0, time.process_time()
        while (spent_s := time.process_time() - began_s) < ROUND_S:
            work()
            count += 1
        best = min(best, spent_s / count)
    return best / COUNT * 1e6


SHAPES = {"publications": publications, "heads, bodies": heads}


def costs(make: Callable[[str, bytes, int], bytes], kind: str, body: bytes) -> list[float]:
    """Return what it costs to make such requests, and to read them in each way."""
    firsts = range(1, REQUESTS * COUNT, COUNT)
    first = partial(next, itertools.cycle(firsts))
    request = partial(next, itertools.cycle([make(kind, body, number) for number in firsts]))
    reader = PublicationReader(BODY_BYTES_MAX)
    made = cost_us(lambda: make(kind, body, first()))
    if make is heads:
        return [made, cost_us(lambda: read_heads(request()))]
    by_reader = cost_us(lambda: read_by_reader(reader, request()))
    return [made, by_reader, cost_us(lambda: read_publications(request()))]


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", type=int, default=100)
    body = bytes(parser.parse_args().size)
    print(f"brokerd {compiled.form()}, bodies of {len(body)} B; µs of CPU per message\n")
    print("| | octets | to make it | to read it | by protobuf alone |\n|---|---|---|---|---|")
    for kind, (what, make) in itertools.product(KINDS, SHAPES.items()):
        figures = " | ".join(f"{figure:.2f}" for figure in costs(make, kind, body))
        print(f"| {what}, {kind} | {len(make(kind, body, 1))} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
