"""Queues, bindings and vhosts in great number: written as a definitions file, and imported.

For the benches that need more of something than a client declares in a moment.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.processes import Cluster

#: What a binding's exchange is called.
EXCHANGE = "curve"


def import_definitions(cluster: Cluster, file: Path) -> None:
    cluster.control("import_definitions", "-t", "1800", str(file))


@contextmanager
def binding_definitions(kind: str, queue: str, keys: list[str]) -> Iterator[Path]:
    exchange = {"name": EXCHANGE, "vhost": "/", "type": kind, "durable": True}
    exchange |= {"auto_delete": False, "internal": False, "arguments": {}}
    bindings = [
        {
            "source": EXCHANGE,
            "vhost": "/",
            "destination": queue,
            "destination_type": "queue",
            "routing_key": key,
            "arguments": {},
        }
        for key in keys
    ]
    with written({"exchanges": [exchange], "bindings": bindings}) as file:
        yield file


@contextmanager
def queue_definitions(kind: str, numbers: range, vhost: str = "/") -> Iterator[Path]:
    queues = [
        {
            "name": f"idle-{number}",
            "vhost": vhost,
            "durable": True,
            "auto_delete": False,
            "arguments": {"x-queue-type": kind},
        }
        for number in numbers
    ]
    with written({"queues": queues}) as file:
        yield file


@contextmanager
def written(definitions: dict[str, object]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="bench-curves-") as folder:
        file = Path(folder) / "definitions.json"
        file.write_text(json.dumps(definitions))
        yield file


@contextmanager
def vhost_definitions(numbers: range) -> Iterator[Path]:
    """Vhosts in which guest may do everything, each with a durable classic queue."""
    names = [f"idle-{number}" for number in numbers]
    everything = {"user": "guest", "configure": ".*", "write": ".*", "read": ".*"}
    queue = {"name": "own", "durable": True, "auto_delete": False, "arguments": {}}
    with written(
        {
            "vhosts": [{"name": name} for name in names],
            "permissions": [everything | {"vhost": name} for name in names],
            "queues": [queue | {"vhost": name} for name in names],
        }
    ) as file:
        yield file
