"""Is a message of a peer well-formed?  Asked before anything else looks at it; node.py is the user.

Peers are authenticated by the transport, but a bug, a damaged frame or a stranger with a
certificate must not corrupt a group: what does not make sense in itself is ignored as if it had
been lost, which the protocol survives by design.
"""

from __future__ import annotations

from brokerd.raft.config import NUMBER_MAX, RaftConfig
from brokerd.raft.errors import CorruptEntryError
from brokerd.raft.membership import decode_configuration, fault_of_configuration
from brokerd.raft.messages import Entry, EntryKind, Message, MessageKind, Snapshot

#: Looked up once: the way through the classes of kinds costs more, per message and entry.
_APPEND, _SNAPSHOT = MessageKind.APPEND, MessageKind.SNAPSHOT
_COMMAND = EntryKind.COMMAND

#: Bytes of `now_ms` before a command (see messages.Entry).
STAMP_BYTES = 8


def fault_of_message(message: Message, config: RaftConfig) -> str | None:
    """Return what is wrong with a message in itself, or None."""
    if not (
        0 <= message.term <= NUMBER_MAX
        and 0 <= message.index <= NUMBER_MAX
        and 0 <= message.log_term <= message.term
        and 0 <= message.commit <= NUMBER_MAX
        and 0 <= message.hint <= NUMBER_MAX
    ):
        return "a number is out of bounds"
    kind = message.kind
    if message.entries:
        if kind != _APPEND:
            return "entries in a message that carries none"
        return _fault_of_entries(message, config)
    if kind == _SNAPSHOT:
        return _fault_of_snapshot(message.snapshot, message.term)
    if message.term == 0:
        return "no message is sent in term 0"
    return None


def _fault_of_entries(message: Message, config: RaftConfig) -> str | None:
    entries = message.entries
    # A member with another setting may send more; ten times as much is no setting any more.
    if len(entries) > 10 * config.append_entries_max:
        return "too many entries"
    index = message.index
    term = message.log_term
    for entry in entries:
        index += 1
        if entry.index != index:
            return "entries are not consecutive"
        if not term <= entry.term <= message.term or entry.term == 0:
            return "terms of entries do not ascend"
        term = entry.term
        fault = fault_of_entry_data(entry, config)
        if fault is not None:
            return fault
    return None


def fault_of_entry_data(entry: Entry, config: RaftConfig) -> str | None:
    """Return what is wrong with an entry's kind or data, or None."""
    kind = entry.kind
    size = len(entry.data)
    if kind == _COMMAND:
        if not STAMP_BYTES <= size <= config.command_bytes_max + STAMP_BYTES:
            return "a command is too short or too long"
        return None
    if kind == EntryKind.NOOP:
        return "a no-op with data" if size else None
    if kind != EntryKind.CONFIG:
        return "an entry of unknown kind"
    try:
        decode_configuration(entry.data)
    except CorruptEntryError as error:
        return str(error)
    return None


def _fault_of_snapshot(snapshot: Snapshot | None, term: int) -> str | None:
    if snapshot is None:
        return "a snapshot message without snapshot"
    if not (0 < snapshot.index <= NUMBER_MAX and 0 < snapshot.term <= term):
        return "a snapshot's index or term is out of bounds"
    fault = fault_of_configuration(snapshot.configuration)
    if fault is not None:
        return fault
    if not _are_term_starts(snapshot):
        return "the terms of a snapshot do not ascend"
    before = 0
    for entry in snapshot.live:
        if not before < entry.index <= snapshot.index:
            return "live entries of a snapshot are not in order"
        if not 0 < entry.term <= snapshot.term:
            return "a live entry of a snapshot has an impossible term"
        before = entry.index
    return None


def _are_term_starts(snapshot: Snapshot) -> bool:
    before = (0, 0)
    for start in snapshot.terms:
        if not (before[0] < start[0] <= snapshot.index and before[1] < start[1] <= snapshot.term):
            return False
        before = start
    return not snapshot.terms or before[1] == snapshot.term
