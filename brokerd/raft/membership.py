"""Configurations: their codec, which change is legal, and which one holds at an index.

One server at a time (Raft thesis §4.1): two majorities of neighbouring configurations always
overlap. A configuration takes effect as soon as it is in the log, committed or not, and is taken
back when its entry is truncated. Used by node.py only.
"""

from __future__ import annotations

from collections.abc import Iterable

from brokerd.raft.errors import CorruptEntryError
from brokerd.raft.log import RaftLog
from brokerd.raft.messages import Configuration, Entry, EntryKind, NodeId, configuration_of
from brokerd.raft.storage import LogStorage

#: Members of a group at most; five replicas are usual, nine the sensible maximum.
MEMBERS_MAX = 64
#: Bytes of a node id at most (a DNS name).
NODE_ID_BYTES_MAX = 255
_VERSION = 1


def encode_configuration(configuration: Configuration) -> bytes:
    """Return the data of a CONFIG entry: version, then count and length-prefixed ids, twice."""
    parts = [bytes((_VERSION,))]
    for nodes in (configuration.voters, configuration.learners):
        parts.append(bytes((len(nodes),)))
        for node in nodes:
            raw = node.encode()
            parts.append(bytes((len(raw),)) + raw)
    return b"".join(parts)


def decode_configuration(data: bytes) -> Configuration:
    """Parse a CONFIG entry's data; raise CorruptEntryError if it is anything but well-formed."""
    if not data or data[0] != _VERSION:
        raise CorruptEntryError("configuration entry has an unknown version")
    at = 1
    groups: list[tuple[NodeId, ...]] = []
    try:
        for _ in range(2):
            count = data[at]
            at += 1
            nodes = []
            for _ in range(count):
                length = data[at]
                raw = data[at + 1 : at + 1 + length]
                if len(raw) != length:
                    raise CorruptEntryError("configuration entry is cut off")
                nodes.append(NodeId(raw.decode()))
                at += 1 + length
            groups.append(tuple(nodes))
    except (IndexError, UnicodeDecodeError) as error:
        raise CorruptEntryError("configuration entry is malformed") from error
    configuration = configuration_of(groups[0], groups[1])
    if at != len(data) or fault_of_configuration(configuration) is not None:
        raise CorruptEntryError("configuration entry is malformed")
    return configuration


def fault_of_configuration(configuration: Configuration) -> str | None:
    """Return what is wrong with a configuration, or None."""
    nodes = configuration.voters + configuration.learners
    if not configuration.voters:
        return "a group needs at least one voter"
    if len(nodes) > MEMBERS_MAX:
        return f"a group has at most {MEMBERS_MAX} members"
    if len(set(nodes)) != len(nodes):
        return "a member is named twice"
    if any(not 0 < len(node.encode()) <= NODE_ID_BYTES_MAX for node in nodes):
        return "a member's name is empty or too long"
    sorted_voters = tuple(sorted(configuration.voters))
    if (sorted_voters, tuple(sorted(configuration.learners))) != (
        configuration.voters,
        configuration.learners,
    ):
        return "members are not sorted"
    return None


def fault_of_change(current: Configuration, wanted: Configuration) -> str | None:
    """Return why `wanted` may not follow `current`, or None: one member's role must differ."""
    fault = fault_of_configuration(wanted)
    if fault is not None:
        return fault
    before = _roles(current)
    after = _roles(wanted)
    changed = [node for node in before | after if before.get(node) != after.get(node)]
    if not changed:
        return "nothing changes"
    if len(changed) > 1:
        return "only one member may change at a time"
    return None


def _roles(configuration: Configuration) -> dict[NodeId, bool]:
    return dict.fromkeys(configuration.voters, True) | dict.fromkeys(configuration.learners, False)


#: Looked up once: the way through the class of kinds costs more, per entry.
_CONFIG = EntryKind.CONFIG


class ConfigurationHistory:
    """The configuration in force and those it would fall back to.

    Invariant: indexes ascend; the first one is the base, which can never be truncated any more.
    """

    __slots__ = ("_items", "current")

    def __init__(self, base: Configuration, index: int = 0) -> None:
        self._items: list[tuple[int, Configuration]] = [(index, base)]
        #: The newest configuration in the log: the one in force.
        self.current = base

    @property
    def current_index(self) -> int:
        """Index of the entry that brought the configuration in force; the base's may be lower."""
        return self._items[-1][0]

    def append(self, index: int, configuration: Configuration) -> None:
        """Put a configuration in force whose entry was just appended at `index`."""
        self._items.append((index, configuration))
        self.current = configuration

    def extend(self, entries: Iterable[Entry]) -> None:
        """Put the configurations in force that stand in appended entries."""
        for entry in entries:
            if entry.kind == _CONFIG:
                self.append(entry.index, decode_configuration(entry.data))

    def truncate(self, first: int) -> None:
        """Forget configurations at or behind index `first`."""
        while len(self._items) > 1 and self._items[-1][0] >= first:
            self._items.pop()
        self.current = self._items[-1][1]

    def settle(self, applied: int) -> None:
        """Drop what lies behind the newest configuration at or below the applied index."""
        while len(self._items) > 1 and self._items[1][0] <= applied:
            del self._items[0]

    def at(self, index: int) -> Configuration:
        """Return the configuration that held at `index` (not below the last settled one)."""
        found = self._items[0][1]
        for where, configuration in self._items:
            if where <= index:
                found = configuration
        return found


def recover(
    log: RaftLog,
    storage: LogStorage,
    stored: Configuration,
    bootstrap: Configuration,
    bytes_max: int,
) -> ConfigurationHistory:
    """Return the history after a restart.

    `stored` is the newest configuration on disk (no voters: none yet).  It may stand in an entry
    that may yet be truncated; only then the one before it is searched for.
    """
    newest = _configurations_in(log, log.committed + 1, log.last, bytes_max)
    if not newest:
        return ConfigurationHistory(stored if stored.voters else bootstrap)
    base = bootstrap
    before = _configurations_in(log, log.first, log.committed, bytes_max)
    snapshot = storage.snapshot_state() if log.first > 1 and not before else None
    if before:
        base = before[-1][1]
    elif snapshot is not None:
        base = snapshot.configuration
    history = ConfigurationHistory(base)
    for index, configuration in newest:
        history.append(index, configuration)
    return history


def _configurations_in(
    log: RaftLog, low: int, high: int, bytes_max: int
) -> list[tuple[int, Configuration]]:
    found = []
    while low <= high:
        entries = log.entries(low, high + 1, bytes_max, 1 << 16)
        found += [
            (entry.index, decode_configuration(entry.data))
            for entry in entries
            if entry.kind == EntryKind.CONFIG
        ]
        low += len(entries)
    return found
