"""The files of telemetry: names, open ones, sealing, recovery (design/telemetry.md §6.2, 6.3).

An open file is JSON lines below `open/`, first line `_open`.  Sealing adds the line `_seal`, whose
sha256 covers every line before it, compresses, and renames into place below `raw/v1/`; the name
alone says what is inside.  No threads and no clocks here: `segments.py` decides when.  Blocking.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

import orjson

Row: TypeAlias = dict[str, Any]

STREAMS = ("sample", "event", "trace")
RAW = "raw/v1"
#: A path below RAW, as it is listed and asked for; nothing else is ever opened (SEC: traversal).
SEGMENT_PATH = re.compile(
    r"cluster=[A-Za-z0-9._@+%~-]{1,512}/node=[A-Za-z0-9._@+%~-]{1,512}/"
    r"dt=\d{4}-\d\d-\d\d/hh=\d\d/"
    r"(?P<stream>[a-z]{1,16})\.(?P<boot>[0-9a-f]{1,64})\.(?P<seg>\d{6,12})\."
    r"(?P<seq0>\d{1,19})-(?P<seq1>\d{1,19})\.(?P<rows>\d{1,12})\.jsonl\.gz"
)
#: gzip-1: 37 octets per row for a third of the time of gzip-6 (design/telemetry.md §4.3).
GZIP_LEVEL = 1


@dataclass(slots=True, frozen=True)
class Identity:
    """Who writes: cluster is `namespace/name`, boot 128 random bits in hex."""

    cluster: str
    node: str
    boot: str
    broker_version: str = ""
    pod_uid: str = ""


@dataclass(slots=True)
class OpenSegment:
    """A file that rows are added to.  Invariant: `size_bytes` is the file's size, all complete."""

    path: Path
    descriptor: int
    stream: str
    number: int
    #: Start of the hour that it belongs to.
    hour_us: int
    opened_us: int
    size_bytes: int = 0
    rows: int = 0
    seq_first: int = 0
    seq_last: int = 0
    digest: Any = field(default_factory=hashlib.sha256)

    def write(self, lines: Sequence[bytes], seq_first: int, seq_last: int) -> None:
        """Append lines and make them durable; OSError leaves the file to `recover`."""
        data = b"".join(lines)
        _write_all(self.descriptor, data)
        os.fsync(self.descriptor)
        self.digest.update(data)
        self.size_bytes += len(data)
        if not self.rows:
            self.seq_first = seq_first
        self.seq_last = seq_last
        self.rows += len(lines)

    def close(self) -> None:
        """Close the file; sealing or recovery goes on with its path."""
        os.close(self.descriptor)


def encode(row: Mapping[str, Any]) -> bytes:
    """Return a row as a line; absent and empty fields are left out."""
    lean = {name: value for name, value in row.items() if value is not None}
    try:
        return orjson.dumps(lean, option=orjson.OPT_APPEND_NEWLINE)
    except orjson.JSONEncodeError:
        # A name that is no text, or a number of more than 64 bits.
        text = json.dumps(lean, separators=(",", ":"), ensure_ascii=False)
        return text.encode("utf-8", "replace") + b"\n"


def open_segment(
    directory: Path, identity: Identity, stream: str, number: int, now_us: int, interval_ms: int
) -> OpenSegment:
    """Create an open file with its header line."""
    folder = directory / "open"
    make_directory(folder)
    path = folder / f"{stream}.{identity.boot}.{number:06d}.jsonl"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    segment = OpenSegment(path, descriptor, stream, number, now_us - now_us % 3_600_000_000, now_us)
    namespace, _, _ = identity.cluster.rpartition("/")
    header = encode(
        {
            "k": "_open", "v": 1, "cluster": identity.cluster, "ns": namespace,
            "node": identity.node, "pod_uid": identity.pod_uid, "boot": identity.boot,
            "stream": stream, "seg": number, "opened_us": now_us, "interval_ms": interval_ms,
            "broker_version": identity.broker_version, "clock_offset_us": 0, "clock_err_us": 0,
        }
    )  # fmt: skip
    try:
        segment.write([header], 0, 0)
    except OSError:
        segment.close()
        raise
    segment.rows = 0
    return segment


def seal(directory: Path, identity: Identity, segment: OpenSegment) -> Path | None:
    """Make a closed open file a sealed segment; None if it held no row."""
    segment.close()
    if not segment.rows:
        segment.path.unlink()
        return None
    header = {"cluster": identity.cluster, "node": identity.node, "boot": identity.boot}
    body = segment.path.read_bytes()[: segment.size_bytes]
    where = _Where(
        {**header, "stream": segment.stream, "seg": segment.number, "opened_us": segment.opened_us}
    )
    span = (segment.seq_first, segment.seq_last, segment.rows)
    path = _publish(directory, where, body, segment.digest.hexdigest(), span, recovered=False)
    segment.path.unlink()
    return path


def recover(directory: Path, path: Path) -> Path | None:
    """Seal what an ended process left open, cut at its last good line; None if that is nothing."""
    body, rows, header = _good_part(path)
    try:
        where = _Where(header)
    except (KeyError, TypeError, ValueError):
        path.unlink()
        return None
    if not rows:
        path.unlink()
        return None
    span = (rows[0], rows[-1], len(rows))
    sealed = _publish(
        directory, where, body, hashlib.sha256(body).hexdigest(), span, recovered=True
    )
    path.unlink()
    return sealed


def left_open(directory: Path) -> list[Path]:
    """Return the open files of earlier processes, oldest first; remove unfinished sealings."""
    for unfinished in (directory / RAW).rglob("*.tmp"):
        unfinished.unlink(missing_ok=True)
    return sorted((directory / "open").glob("*.jsonl"))


def sealed_paths(directory: Path) -> list[str]:
    """Return the paths of all sealed segments below RAW, in order of their hours."""
    raw = directory / RAW
    found = [path.relative_to(raw).as_posix() for path in raw.rglob("*.jsonl.gz")]
    return sorted(path for path in found if SEGMENT_PATH.fullmatch(path))


def safe_name(name: str) -> str:
    """Return a name as one path component: '/' becomes '+', what else is odd is %-escaped."""
    return quote(name.replace("/", "+"), safe="+@._-~")[:512] or "_"


def make_directory(path: Path) -> None:
    """Create a directory that only this user may enter."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)


class _Where:
    """The place of a segment, from its header line."""

    __slots__ = ("boot", "folder", "number", "stream")

    def __init__(self, header: Mapping[str, Any]) -> None:
        opened = datetime.fromtimestamp(int(header["opened_us"]) / 1e6, UTC)
        self.stream = str(header["stream"])
        self.boot = str(header["boot"])
        self.number = int(header["seg"])
        if self.stream not in STREAMS:
            raise ValueError("no such stream")
        self.folder = (
            f"cluster={safe_name(str(header['cluster']))}/node={safe_name(str(header['node']))}/"
            f"dt={opened:%Y-%m-%d}/hh={opened:%H}"
        )


def _publish(
    directory: Path,
    where: _Where,
    body: bytes,
    digest: str,
    span: tuple[int, int, int],
    recovered: bool,
) -> Path:
    seq_first, seq_last, rows = span
    trailer: Row = {
        "k": "_seal", "rows": rows, "seq0": seq_first, "seq1": seq_last, "sha256": digest,
    }  # fmt: skip
    if recovered:
        trailer["recovered"] = True
    folder = directory / RAW / where.folder
    make_directory(folder)
    name = f"{where.stream}.{where.boot}.{where.number:06d}.{seq_first}-{seq_last}.{rows}.jsonl.gz"
    final, temporary = folder / name, folder / f"{name}.tmp"
    if recovered and final.exists():
        # The crash came between rename and unlink: a job may have read it already.
        return final
    # mtime 0: the same rows give the same bytes, whenever they are sealed.
    data = gzip.compress(body + encode(trailer), GZIP_LEVEL, mtime=0)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        _write_all(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    temporary.rename(final)
    _sync_directory(folder)
    return final


def _good_part(path: Path) -> tuple[bytes, list[int], Row]:
    """Return the bytes up to the last good line, the rows' seq numbers, and the header."""
    data = path.read_bytes()
    good, rows, header = 0, list[int](), Row()
    for line in data.splitlines(keepends=True):
        row: object = None
        if line.endswith(b"\n"):
            with contextlib.suppress(ValueError):
                row = json.loads(line)
        if not isinstance(row, dict) or row.get("k") == "_seal":
            break
        if not good:
            header = row
        elif not isinstance(row.get("seq"), int):
            break
        else:
            rows.append(row["seq"])
        good += len(line)
    return data[:good], rows, header


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
