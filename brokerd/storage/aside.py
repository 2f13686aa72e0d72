"""What a replica knew to be committed and a leader would have replaced, kept in files of its own.

One file per replica, in the folder `aside` of the data directory: what it is (JSON), then its
entries, each with a checksum, then how many.  It counts once it has its name (temporary name,
fsync, rename, fsync of the directory) and is never changed; how far somebody has come with it
stands in a small file beside it.  The log keeps the entries as well until somebody has decided, so
a file that cannot be written (a full disk) loses nothing: cluster/groups/keeping.py tries again.
For cluster/groups/keeping.py and server/members/kept_aside.py.  Not for two threads at once.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import google_crc32c

from brokerd.raft.messages import Entry
from brokerd.storage.disk import Disk
from brokerd.storage.errors import AsideFailed, CorruptLog, UnknownFormat

FOLDER = "aside"
MAGIC = b"BRKDKPT\n"
FORMAT_VERSION = 1
#: Files kept at most: more are a sign that none is read.  What comes then stays in the log only.
FILES_MAX = 1_000
#: Bytes that are read at once.
READ_BYTES = 1 << 20
#: A record claims more: it is damaged (the largest entry has 129 MiB).
DATA_BYTES_MAX = 1 << 28

#: magic, version, bytes of the description.
_HEAD = struct.Struct("<8sII")
#: checksum of the rest, bytes of data, index, term, kind, flags.
_RECORD = struct.Struct("<IIQQBB")
_CHECKSUM_BYTES = 4

#: Kinds of records beside those of entries.
STATE, END = 254, 255
#: Flag of an entry whose messages were in the queue when it was kept.
LIVE = 1


@dataclass(slots=True)
class Progress:
    """How far somebody has come with a file."""

    #: "kept"; "republishing"; "released" (the replica may begin anew), "begun" (it has), "done".
    phase: str = "kept"
    #: Republish: entries that are done, from the first on.
    entries: int = 0
    #: Of the catalog: its objects are declared again once the replica here is whole.
    is_republish: bool = False
    #: What has to be done by hand, and what went wrong.
    remarks: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Description:
    """What a file holds."""

    #: The group, and what the log here called it.
    uid: int
    log_uid: int
    #: "queue", "catalog", or "orphan": a queue that the cluster's catalog does not know any more.
    kind: str
    vhost: str
    name: str
    #: This member, and those of the group.
    member: str
    members: list[str]
    #: From the first entry that differs to the end of the log; what of it was known as committed.
    first: int
    last: int
    committed: int
    #: Who would have replaced it, in which term.
    leader: str
    leader_term: int
    made_ms: int


@dataclass(slots=True)
class Kept:
    """A file, whole."""

    id: str
    path: Path
    description: Description
    entries: int = 0
    messages: int = 0
    progress: Progress = field(default_factory=Progress)
    #: Not empty: the file is damaged.
    fault: str = ""


@dataclass(slots=True)
class KeptEntry:
    """An entry as it stood in the log; `is_live`: its messages were in the queue."""

    entry: Entry
    is_live: bool


class AsideFiles:
    """The folder.  State: what is on disk, and which files `load` could make nothing of."""

    def __init__(self, directory: Path, disk: Disk | None = None) -> None:
        self.directory = directory
        self._disk = disk or Disk()
        self.unreadable: list[Path] = []

    # ---- writing --------------------------------------------------------------------------------

    def begin(self, description: Description) -> AsideWriter:
        """Begin a file; AsideFailed if that cannot be."""
        try:
            if not self.directory.is_dir():
                self.directory.mkdir(mode=0o700, parents=True)
                self._disk.sync_directory(self.directory.parent)
            if sum(1 for _ in self.directory.glob("*.kept")) >= FILES_MAX:
                raise AsideFailed(f"{self.directory} holds {FILES_MAX} files: look after them")
            name = f"{description.uid:x}-{description.made_ms}"
            return AsideWriter(self._disk, self.directory / f"{name}.kept", description)
        except OSError as error:
            raise AsideFailed(f"cannot write to {self.directory}: {error}") from error

    def save(self, kept: Kept) -> None:
        """Remember how far somebody has come; AsideFailed if that cannot be."""
        path = kept.path.with_suffix(".state")
        data = json.dumps(asdict(kept.progress)).encode()
        data += google_crc32c.value(data).to_bytes(_CHECKSUM_BYTES, "little")
        try:
            _write_whole(self._disk, path, data)
        except OSError as error:
            raise AsideFailed(f"cannot write {path}: {error}") from error

    def remove(self, kept: Kept) -> None:
        """Delete a file that is not needed any more; AsideFailed if that cannot be."""
        try:
            for path in (kept.path, kept.path.with_suffix(".state")):
                path.unlink(missing_ok=True)
            self._disk.sync_directory(self.directory)
        except OSError as error:
            raise AsideFailed(f"cannot delete {kept.path}: {error}") from error

    # ---- reading --------------------------------------------------------------------------------

    def load(self) -> list[Kept]:
        """Return all files, the oldest first; what was not finished is deleted: the log has it.

        AsideFailed: the folder cannot be read.
        """
        self.unreadable = []
        try:
            if not self.directory.is_dir():
                return []
            for left in self.directory.glob("*.tmp"):
                self._disk.unlink(left)
            found = [kept for path in self.directory.glob("*.kept") if (kept := self._loaded(path))]
        except OSError as error:
            raise AsideFailed(f"cannot read {self.directory}: {error}") from error
        return sorted(found, key=lambda kept: (kept.description.made_ms, kept.id))

    def _loaded(self, path: Path) -> Kept | None:
        reader = _Reader(self._disk, path)
        try:
            description = reader.description()
            kept = Kept(path.stem, path, description)
            try:
                kept.entries, kept.messages = reader.counts()
            except CorruptLog as error:
                kept.fault = str(error)
        except CorruptLog:
            # Not even what it was of can be told; it stays where it is.
            self.unreadable.append(path)
            return None
        finally:
            reader.close()
        kept.progress = self._progress(path.with_suffix(".state"))
        return kept

    def _progress(self, path: Path) -> Progress:
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return Progress()
        text, checksum = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
        if google_crc32c.value(text).to_bytes(_CHECKSUM_BYTES, "little") != checksum:
            # Begins again: what has been published comes once more, nothing is left out.
            return Progress(remarks=[f"{path.name} was damaged: begun again"])
        progress = Progress(**json.loads(text))
        if progress.phase == "republishing":
            # The process ended meanwhile; somebody has it go on.
            progress.phase = "kept"
        return progress

    def entries(self, kept: Kept, skip: int = 0) -> Iterator[KeptEntry]:
        """Read the entries behind the first `skip`, in order; CorruptLog at a damaged one."""
        reader = _Reader(self._disk, kept.path)
        try:
            reader.description()
            for kind, flags, index, term, data in reader.records():
                if kind in (STATE, END):
                    continue
                if skip:
                    skip -= 1
                    continue
                yield KeptEntry(Entry(index, term, kind, data), bool(flags & LIVE))
        finally:
            reader.close()

    def state(self, kept: Kept) -> bytes:
        """Return the machine's state that was kept along; b"" if there is none."""
        reader = _Reader(self._disk, kept.path)
        try:
            reader.description()
            return next((data for kind, *_, data in reader.records() if kind == STATE), b"")
        finally:
            reader.close()


class AsideWriter:
    """A file on its way; raises OSError."""

    def __init__(self, disk: Disk, path: Path, description: Description) -> None:
        self.path = path
        self.description = description
        self.entries = 0
        self.messages = 0
        self._disk = disk
        self._temporary = path.with_suffix(".tmp")
        if self._temporary.exists():
            disk.unlink(self._temporary)
        self._descriptor = disk.open(self._temporary, create=True)
        self._end = 0
        text = json.dumps(asdict(description)).encode()
        head = _HEAD.pack(MAGIC, FORMAT_VERSION, len(text)) + text
        self._store([head, google_crc32c.value(head).to_bytes(_CHECKSUM_BYTES, "little")])

    def _store(self, pieces: Sequence[bytes]) -> None:
        data = b"".join(pieces)
        self._disk.write(self._descriptor, data, self._end)
        self._end += len(data)

    def add(self, entries: Sequence[tuple[Entry, int, bool]]) -> None:
        """Append entries: how many messages each is to bring back, and whether any."""
        self._store(
            [
                _record(entry.kind, LIVE if is_live else 0, entry.index, entry.term, entry.data)
                for entry, _, is_live in entries
            ]
        )
        self.entries += len(entries)
        self.messages += sum(count for _, count, _ in entries)

    def add_state(self, data: bytes) -> None:
        """Append the state of the machine."""
        self._store([_record(STATE, 0, 0, 0, data)])

    def finish(self) -> Kept:
        """Make it durable and give it its name."""
        counts = json.dumps({"entries": self.entries, "messages": self.messages}).encode()
        self._store([_record(END, 0, 0, 0, counts)])
        self._disk.sync(self._descriptor)
        self._disk.close(self._descriptor)
        self._descriptor = -1
        self._disk.rename(self._temporary, self.path)
        self._disk.sync_directory(self.path.parent)
        return Kept(self.path.stem, self.path, self.description, self.entries, self.messages)

    def give_up(self) -> None:
        """Leave nothing behind."""
        if self._descriptor >= 0:
            self._disk.close(self._descriptor)
            self._descriptor = -1
        self._temporary.unlink(missing_ok=True)


class _Reader:
    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self._descriptor = disk.open_now(path)
        self._at = 0

    def close(self) -> None:
        self._disk.close(self._descriptor)

    def _take(self, size: int) -> bytes:
        data = self._disk.read(self._descriptor, size, self._at)
        if len(data) < size:
            raise CorruptLog(f"{self._path.name} ends too early")
        self._at += size
        return data

    def description(self) -> Description:
        head = self._take(_HEAD.size)
        magic, version, size = _HEAD.unpack(head)
        if magic != MAGIC or size > DATA_BYTES_MAX:
            raise CorruptLog(f"{self._path.name} is no file of kept entries")
        if version != FORMAT_VERSION:
            raise UnknownFormat(
                f"{self._path.name}: format version {version}; this build reads {FORMAT_VERSION}"
            )
        text = self._take(size)
        if self._take(_CHECKSUM_BYTES) != _sum(head + text):
            raise CorruptLog(f"{self._path.name}: checksum failure in the description")
        fields: Mapping[str, Any] = json.loads(text)
        return Description(**fields)

    def records(self) -> Iterator[tuple[int, int, int, int, bytes]]:
        """Read up to the end record, which comes last."""
        while True:
            head = self._take(_RECORD.size)
            checksum, size, index, term, kind, flags = _RECORD.unpack(head)
            if size > DATA_BYTES_MAX:
                raise CorruptLog(f"{self._path.name}: a record of {size} bytes")
            data = self._take(size)
            if checksum != int.from_bytes(_sum(head[_CHECKSUM_BYTES:] + data), "little"):
                raise CorruptLog(f"{self._path.name}: checksum failure at entry {index}")
            yield kind, flags, index, term, data
            if kind == END:
                return

    def counts(self) -> tuple[int, int]:
        """Read everything; return what the end record says."""
        data = b""
        for record in self.records():
            data = record[-1]
        counts = json.loads(data)
        return counts["entries"], counts["messages"]


def _sum(data: bytes) -> bytes:
    return int(google_crc32c.value(data)).to_bytes(_CHECKSUM_BYTES, "little")


def _record(kind: int, flags: int, index: int, term: int, data: bytes) -> bytes:
    body = _RECORD.pack(0, len(data), index, term, kind, flags)[_CHECKSUM_BYTES:] + data
    return _sum(body) + body


def _write_whole(disk: Disk, path: Path, data: bytes) -> None:
    temporary = path.with_suffix(".state.tmp")
    temporary.unlink(missing_ok=True)
    disk.write_new(temporary, data)
    disk.rename(temporary, path)
    disk.sync_directory(path.parent)
