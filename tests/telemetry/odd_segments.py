"""Segments beside the sound fleet of test_job.py: a queue that miscounts, rows of odd content, the
rows of design/telemetry.md §14.1, and damaged files.
"""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path
from typing import Any

from brokerd_telemetry import schema
from pyspark.sql.types import LongType

from tests.telemetry import fleet

#: Rows whose types are right and whose content no member writes.
ODD: tuple[dict[str, Any], ...] = (
    {"k": "policy", "kind": "policy", "policy": "odd", "overridden": {"x": None},
     "matched": {"a": None, "b": 1 << 62, "c": 1 << 62}},
    {"k": "policy", "kind": "no-such-kind", "policy": "odd"},
    {"k": "topo", "kind": "vhost", "objects": {"classic": None, "quorum": 1}},
    {"k": "topo", "kind": "exchange", "bindings": 0, "has_alternate": False},
    {"k": "topo", "kind": "exchange", "bindings": 0, "has_alternate": False, "exchange": "odd"},
    {"k": "topo", "kind": "no-such-kind"},
    {"k": "redel", "queue": "odd", "n": 1 << 62, "tries": 1, "fp": "f"},
    {"k": "redel", "queue": "odd", "n": 1 << 62, "tries": 2, "fp": "f"},
)  # fmt: skip

#: Messages of 100 octets.
LARGE = 10**13


def cheat(raw: Path) -> None:
    """Write a cluster whose queue says that it acknowledged one message more than it did."""
    node = fleet.Node(raw, "test/cheat", "c0", 0xC0, [])
    queue = fleet.Queue(9, "cheated")
    queue.counters |= {"enq": 10, "dlv": 4, "ack": 4}
    queue.ready = 6
    contents = [fleet.content("k")] * 10
    node.counters.published("/", "web", "x", fleet.route("cheated"), contents)
    node.boot_event(fleet.BEGIN_US, "start")
    node.collect(fleet.BEGIN_US, fleet.BEGIN_US + fleet.INTERVAL_US, [queue], 1)
    queue.counters["ack"] += 1
    second_us = fleet.BEGIN_US + 2 * fleet.INTERVAL_US
    node.collect(fleet.BEGIN_US + fleet.INTERVAL_US, second_us, [queue], 1)
    node.rows["sample"] += [
        {"k": "queue", "t0": 1, "t1": 2, "vhost": "/"},
        {"k": "unheard-of", "t0": 1, "t1": 2},
        {"k": "node", "t0": "soon", "t1": 2},
        {"k": "node", "t0": 5, "t1": 2},
        {"k": "node", "t0": 1 << 60, "t1": 1 << 60},
    ]
    node.rows["sample"] += [{"t0": fleet.BEGIN_US, "t1": second_us, "vhost": "/", **row}
                            for row in ODD]  # fmt: skip
    node.boot_event(second_us, "end")
    node.seal(fleet.BEGIN_US)


def large(raw: Path) -> None:
    """Write a cluster with a queue so large that octets times microseconds are no 64-bit number."""
    node = fleet.Node(raw, "test/large", "l0", 0x1A, [])
    queue = fleet.Queue(3, "large")
    node.boot_event(fleet.BEGIN_US, "start")
    for number in range(2):
        # One more each time: of a queue that stays as it is nothing is told.
        queue.counters["enq"] = queue.ready = LARGE + number
        at_us = fleet.BEGIN_US + number * fleet.INTERVAL_US
        node.collect(at_us, at_us + fleet.INTERVAL_US, [queue], 1)
    node.boot_event(at_us + fleet.INTERVAL_US, "end")
    node.seal(fleet.BEGIN_US)


def greedy(raw: Path) -> None:
    """Write a cluster whose rows claim the largest numbers that there are, of each kind."""
    node = fleet.Node(raw, "test/greedy", "g0", 0x62, [])
    times = {"t0": fleet.BEGIN_US, "t1": fleet.BEGIN_US + fleet.INTERVAL_US}
    names = [field.name for field in schema.ROW.fields if field.dataType == LongType()]
    claims = dict.fromkeys(names, (1 << 63) - 1)
    most = {"i": [1, 2], "c": [claims["n"]] * 2, "sum_us": claims["n"], "max_us": claims["n"]}
    for kind, needed in schema.REQUIRED.items():
        texts = dict.fromkeys(set(needed) - set(names), "x")
        row = claims | texts | {"k": kind, **times}
        if "total" in row:
            row |= dict.fromkeys(("total", "route", "replicate", "fsync", "wait", "lag"), most)
        node.rows["sample"] += [row, row, row | {"c_enq": 0, "term": -(1 << 63)}]
    node.seal(fleet.BEGIN_US)


def golden(raw: Path) -> None:
    """Write the rows of design/telemetry.md §14.1 (with the cumulative counters they imply)."""
    node = fleet.Node(raw, "mq/prod-eu", "brokerd-1", 0xA1, [])
    common = {"t0": 1795184400000000, "t1": 1795184410000000, "vhost": "shop"}
    node.rows["sample"] += [
        {
            "k": "queue", **common, "queue": "orders", "qtype": "quorum", "grp": 12, "term": 7,
            "ready": 1804, "unacked": 96, "ready_bytes": 1847296, "unacked_bytes": 98304,
            "enq": 912, "enq_bytes": 933888, "dlv": 640, "redlv": 12, "ack": 628, "rejected": 4,
            "over_limit": 1, "dl_out": 5, "dl_pending": 2,
            "c_enq": 5120044, "c_ack": 5117000, "c_rejected": 1000, "c_over_limit": 144,
            "c_dl_out": 1144, "c_dlv": 5200000, "dlx": "dead", "strategy": "at-least-once",
            "dl_confirmed": 4, "c_dl_confirmed": 1142,
        },
        {
            "k": "exchange", **common, "exchange": "orders.in", "in": 950, "routed": 912,
            "copies": 1310, "ae_routed": 31, "ae_hops": [29, 2, 0, 0], "returned": 5,
            "dropped": 2,
        },
        {
            "k": "confirm", **common, "exchange": "orders.in", "user": "web", "n": 905,
            "total": {"i": [343, 361, 379], "c": [410, 470, 25], "sum_us": 998800,
                      "max_us": 1805},
        },
        {"k": "node", **common},
    ]  # fmt: skip
    node.seal(1795184400000000)


def damage(raw: Path) -> None:
    """Add a torn segment, one with a wrong digest, and a copy under another hour."""
    node = fleet.Node(raw, "test/torn", "t0", 0x70, [])
    for _ in range(3):
        node.boot_event(fleet.BEGIN_US, "start")
        node.collect(fleet.BEGIN_US, fleet.BEGIN_US + fleet.INTERVAL_US, [])
        node.seal(fleet.BEGIN_US)
    first, second, third = sorted((raw / "raw/v1/cluster=test+torn").rglob("sample.*"))
    first.write_bytes(first.read_bytes()[:-10])
    second.write_bytes(
        gzip.compress(gzip.decompress(second.read_bytes()).replace(b"conns", b"coins"))
    )
    copy = third.parents[1] / "hh=15" / third.name
    copy.parent.mkdir()
    shutil.copy(third, copy)
