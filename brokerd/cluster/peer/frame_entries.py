"""Entries of a large frame, cut out before protobuf reads the rest.

A follower's frames are nearly all entries' data, and protobuf would copy them twice more.  What is
laid out in any other way than frames.py lays it is left to protobuf, which is the only judge of a
frame.  For peer_service.py; inbox.py puts the two together again.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeAlias

from brokerd.raft.messages import Entry

#: A smaller frame is cheaper to read whole.
CUT_BYTES_MIN = 32 * 1024

#: Entries by the place of their message among the frame's Raft messages.
CutEntries: TypeAlias = Mapping[int, list[Entry]]
NOTHING_CUT: CutEntries = MappingProxyType({})

# Field tags of protos/brokerd/rpc/v1/peer.proto: number << 3 | wire type.
_FRAME_RAFT = 0x12
#: Requests, replies, deliveries and liveness, as they are.
_FRAME_OTHERS = (0x1A, 0x22, 0x2A, 0x32)
_RAFT_GROUP = 0x09
#: kind, term, index, log_term, commit, reject, hint, force.
_RAFT_NUMBERS = (0x10, 0x18, 0x20, 0x28, 0x30, 0x38, 0x40, 0x58)
_RAFT_ENTRY = 0x4A
_ENTRY_INDEX, _ENTRY_TERM, _ENTRY_KIND, _ENTRY_DATA = 0x08, 0x10, 0x18, 0x22
_GROUP_BYTES = 8
#: Of a number; the longest has ten, which only protobuf needs to read.
_VARINT_BYTES_MAX = 9


class _Unusual(Exception):
    """Not as frames.py would lay it out."""


def cut_entries(frame: bytes) -> tuple[bytes, CutEntries]:
    """Return the frame without its entries, and the entries; the frame itself if it is small or
    laid out in an unusual way.
    """
    if len(frame) < CUT_BYTES_MIN:
        return frame, NOTHING_CUT
    try:
        return _cut(frame)
    except (_Unusual, IndexError):
        return frame, NOTHING_CUT


def _cut(frame: bytes) -> tuple[bytes, CutEntries]:
    kept: list[bytes] = []
    found: dict[int, list[Entry]] = {}
    at, end, number = 0, len(frame), 0
    while at < end:
        start, tag = at, frame[at]
        size, at = _varint(frame, at + 1)
        stop = at + size
        if stop > end:
            raise _Unusual
        if tag == _FRAME_RAFT:
            head_end = _skip_head(frame, at, stop)
            if head_end < stop:
                found[number] = _entries(frame, head_end, stop)
                # A head has less than 128 bytes, so its size is one byte.
                kept += (bytes((tag, head_end - at)), frame[at:head_end])
            else:
                kept.append(frame[start:stop])
            number += 1
        elif tag in _FRAME_OTHERS:
            kept.append(frame[start:stop])
        else:
            raise _Unusual
        at = stop
    return b"".join(kept), found


def _skip_head(frame: bytes, at: int, stop: int) -> int:
    """Return where the entries of a Raft message begin: behind its small fields, each once."""
    before = 0
    while at < stop:
        tag = frame[at]
        if tag == _RAFT_ENTRY:
            break
        if tag == _RAFT_GROUP and not before:
            at += 1 + _GROUP_BYTES
        elif tag in _RAFT_NUMBERS and tag > before:
            at = _varint(frame, at + 1)[1]
        else:
            raise _Unusual
        before = tag
    if at > stop:
        raise _Unusual
    return at


def _entries(frame: bytes, at: int, stop: int) -> list[Entry]:
    entries: list[Entry] = []
    while at < stop:
        if frame[at] != _RAFT_ENTRY:
            raise _Unusual
        size, at = _varint(frame, at + 1)
        entry_end = at + size
        index, at = _number(frame, at, _ENTRY_INDEX)
        term, at = _number(frame, at, _ENTRY_TERM)
        kind = 0
        if frame[at] == _ENTRY_KIND:
            kind, at = _number(frame, at, _ENTRY_KIND)
        size, at = _number(frame, at, _ENTRY_DATA)
        if at + size != entry_end or entry_end > stop or kind >> 32:
            raise _Unusual
        entries.append(Entry(index, term, kind, frame[at:entry_end]))
        at = entry_end
    return entries


def _number(frame: bytes, at: int, tag: int) -> tuple[int, int]:
    if frame[at] != tag:
        raise _Unusual
    return _varint(frame, at + 1)


def _varint(frame: bytes, at: int) -> tuple[int, int]:
    """Return the number at `at` and where it ends."""
    byte = frame[at]
    if byte < 0x80:
        return byte, at + 1
    value, shift = byte & 0x7F, 7
    for place in range(at + 1, at + _VARINT_BYTES_MAX):
        byte = frame[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place + 1
        shift += 7
    raise _Unusual
