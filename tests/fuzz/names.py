"""The names of the fuzz targets, readable before anything of the product is imported.

atheris instruments modules as they are imported, so the command line may not import them first.
"""

from __future__ import annotations

from typing import NamedTuple


class Group(NamedTuple):
    """Targets of one module, and the packages whose branches are counted for them."""

    module: str
    packages: tuple[str, ...]
    names: tuple[str, ...]


GROUPS = (
    Group(
        "tests.fuzz.wire_targets",
        ("brokerd.amqp",),
        (
            "server-stream",
            "server-handshake",
            "client-stream",
            "methods",
            "tables",
            "properties",
            "logins",
        ),
    ),
    Group(
        "tests.fuzz.peer_targets",
        ("brokerd.cluster", "brokerd.raft", "brokerd.storage"),
        ("http2-streams", "peer-frames", "deliveries", "segments", "records"),
    ),
    Group(
        "tests.fuzz.state_targets",
        ("brokerd.core",),
        ("queue-commands", "queue-snapshots", "catalog-commands", "annotations", "specs"),
    ),
    Group(
        "tests.fuzz.input_targets",
        ("brokerd.config", "brokerd.federation", "brokerd.core.catalog.definitions_json"),
        ("uris", "upstreams", "federation-headers", "configuration", "definitions"),
    ),
)
NAMES = tuple(name for group in GROUPS for name in group.names)


def group_of(name: str) -> Group:
    """Return where a target is defined."""
    return next(group for group in GROUPS if name in group.names)
