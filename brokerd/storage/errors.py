"""What can go wrong on disk, as the callers of the storage room see it.

Anyone who opens or reads a log may import this; `OSError` never leaves the room untranslated.
"""

from __future__ import annotations


class StorageError(Exception):
    """Base of the room's errors."""


class StorageFailed(StorageError):
    """A write or a sync failed.  Fatal to the process and never retried (design/replication.md §1).

    After a failed fsync the kernel may report success although nothing was written.
    """


class CorruptLog(StorageError):
    """A file cannot be used at all: nothing of it can be trusted or skipped."""


class UnknownFormat(StorageError):
    """A file is of a version (or kind) that this build does not know; it is left untouched."""


class NoDescriptor(StorageError):
    """No file can be opened at the moment; nothing is wrong with it, and it is there later."""


class NoRoom(StorageError):
    """The disk has no room for a snapshot.  Nothing is lost: the log has what it would replace."""


class AsideFailed(StorageError):
    """What was to be kept aside could not be written; nothing is lost by it (aside.py)."""


class DirectoryLocked(StorageError):
    """Another process has this data directory open."""


class WrongNode(StorageError):
    """The directory belongs to another node: starting on it would mix up two identities."""


class DamagedEntry(StorageError):
    """An entry that was written cannot be read back; the group must be refilled by its leader."""

    def __init__(self, uid: int, index: int, where: str) -> None:
        super().__init__(f"group {uid:x} entry {index} at {where} cannot be read back")
        self.uid = uid
        self.index = index
