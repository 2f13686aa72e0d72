"""Which segments are new, whole and wanted (design/telemetry.md §7.1, §10).

A segment is read once by the driver: gzip end, header, seal trailer, row count and sha256 must
agree.  What fails goes to quarantine as a whole and is not tried again; a truncated gzip file would
otherwise fail the whole Spark job or, worse, pass for a short one (design/telemetry.md §3.2).
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

#: The path below raw/v1; the same pattern as the members use.
SEGMENT_PATH = re.compile(
    r"cluster=[A-Za-z0-9._@+%~-]{1,512}/node=[A-Za-z0-9._@+%~-]{1,512}/"
    r"dt=(?P<dt>\d{4}-\d\d-\d\d)/hh=(?P<hh>\d\d)/"
    r"(?P<stream>[a-z]{1,16})\.(?P<boot>[0-9a-f]{1,64})\.(?P<seg>\d{6,12})\."
    r"(?P<seq0>\d{1,19})-(?P<seq1>\d{1,19})\.(?P<rows>\d{1,12})\.jsonl\.gz"
)
#: A member seals at 8 MiB of text (configurable up to what a driver can bear).
TEXT_BYTES_MAX = 256 * 1024 * 1024
#: So many are read at a time, each whole in memory.
AT_ONCE = 2


class BadSegment(Exception):
    """Why a segment is not taken."""


@dataclass(slots=True)
class Segment:
    """A verified segment; `first_seq` cuts off rows that an earlier segment already had."""

    identity: str
    path: str
    cluster: str
    node: str
    boot: str
    stream: str
    seq0: int
    seq1: int
    rows: int
    sha256: str
    interval_us: int
    is_recovered: bool
    hour: str
    #: Where it lies now.
    file: str = ""
    first_seq: int = 0
    #: When its last row ends, by its member's clock, unless the row says how wrong that is.
    last_us: int = 0

    def entry(self) -> dict[str, Any]:
        """Return it for the ledger."""
        left_out = ("identity", "file", "last_us")
        return {name: getattr(self, name) for name in self.__slots__ if name not in left_out}


@dataclass(slots=True)
class Verdicts:
    """What a run makes of the raw directory."""

    fresh: list[Segment] = field(default_factory=list)
    #: (path below raw/v1, reason).
    quarantined: list[tuple[str, str]] = field(default_factory=list)
    #: Paths of segments of which there is a copy under another name, once for each copy.
    duplicates: list[str] = field(default_factory=list)
    overlapping_rows: int = 0

    def add(self, other: Verdicts) -> None:
        """Take those of another source too."""
        self.fresh += other.fresh
        self.quarantined += other.quarantined
        self.duplicates += other.duplicates
        self.overlapping_rows += other.overlapping_rows


def cluster_folder(cluster: str) -> str:
    """Return the directory of a cluster's segments, as the members name it."""
    return f"cluster={quote(cluster.replace('/', '+'), safe='+@')}"


def judge(
    raw_dir: Path,
    paths: list[str],
    known: dict[str, dict[str, Any]],
    clusters: set[str] | None,
    heard: Callable[[str], None] = lambda path: None,
) -> Verdicts:
    """Verify what is new.  known: segments of earlier runs by identity, as the ledger has them.

    clusters: take only segments of these; None takes all.  heard: told of each that was read.
    """
    verdicts = Verdicts()
    by_identity: dict[str, tuple[str, str]] = {
        identity: (entry["path"], entry["sha256"]) for identity, entry in known.items()
    }
    asked: list[tuple[str, str]] = []
    for path in sorted(set(paths)):
        match = SEGMENT_PATH.fullmatch(path)
        if match is None:
            verdicts.quarantined.append((path, "name"))
            continue
        identity = f"{match['boot']}.{match['stream']}.{match['seg']}"
        if identity not in by_identity or by_identity[identity][0] != path:
            asked.append((path, identity))
    for (path, identity), segment in zip(asked, _verified(raw_dir, asked), strict=True):
        heard(path)
        if isinstance(segment, BadSegment):
            verdicts.quarantined.append((path, str(segment)))
            continue
        earlier = by_identity.get(identity)
        if earlier is not None:
            if earlier[1] == segment.sha256:
                verdicts.duplicates.append(earlier[0])
            else:
                # design/telemetry.md §10: SegmentConflict; the later one goes.
                verdicts.quarantined.append((path, "conflict"))
            continue
        if clusters is not None and segment.cluster not in clusters:
            continue
        by_identity[identity] = (path, segment.sha256)
        verdicts.fresh.append(segment)
    _cut_overlaps(verdicts, known)
    return verdicts


def _verified(raw_dir: Path, asked: list[tuple[str, str]]) -> Iterator[Segment | BadSegment]:
    """Yield what each segment is, in order.  Unpacking and sums let go of the interpreter, so that
    some are read at a time.
    """

    def judged(item: tuple[str, str]) -> Segment | BadSegment:
        path, identity = item
        try:
            return verify(raw_dir / path, path, identity)
        except BadSegment as error:
            return error

    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield from pool.map(judged, asked)


def verify(file: Path, path: str, identity: str) -> Segment:
    """Read one segment; BadSegment says what is wrong with it."""
    match = SEGMENT_PATH.fullmatch(path)
    assert match is not None
    data = _text(file)
    if not data.endswith(b"\n"):
        raise BadSegment("torn")
    start = data.rfind(b"\n", 0, len(data) - 1) + 1
    body, last = data[:start], data[start:]
    header, seal = _object(body[: body.find(b"\n") + 1]), _object(last)
    if seal.get("k") != "_seal":
        raise BadSegment("no seal")
    if header.get("k") != "_open":
        raise BadSegment("no header")
    digest = hashlib.sha256(body).hexdigest()
    rows = body.count(b"\n") - 1
    if seal.get("sha256") != digest:
        raise BadSegment("sha256")
    claimed = (seal.get("rows"), seal.get("seq0"), seal.get("seq1"))
    named = (int(match["rows"]), int(match["seq0"]), int(match["seq1"]))
    if rows != seal.get("rows") or claimed != named or rows < 1:
        raise BadSegment("row count")
    if (header.get("boot"), header.get("stream")) != (match["boot"], match["stream"]):
        raise BadSegment("header does not fit the name")
    cluster = header.get("cluster")
    if not isinstance(cluster, str) or not cluster or not isinstance(header.get("node"), str):
        raise BadSegment("header without cluster or node")
    # Who may write for a cluster is decided by the path: no cluster speaks for another one.
    if not path.startswith(f"{cluster_folder(cluster)}/"):
        raise BadSegment("header does not fit the name")
    interval_ms = header.get("interval_ms")
    return Segment(
        identity=identity,
        path=path,
        file=str(file),
        cluster=cluster,
        node=header["node"],
        boot=match["boot"],
        stream=match["stream"],
        seq0=named[1],
        seq1=named[2],
        rows=rows,
        sha256=digest,
        interval_us=(interval_ms if isinstance(interval_ms, int) else 10_000) * 1000,
        is_recovered=bool(seal.get("recovered")),
        hour=f"{match['dt']}T{match['hh']}",
        first_seq=named[1],
        last_us=_end_us(body),
    )


def _end_us(body: bytes) -> int:
    """Return when the last row ends, 0 where it does not say so, or says how wrong its clock is."""
    try:
        row = _object(body[body.rfind(b"\n", 0, len(body) - 1) + 1 :])
    except BadSegment:
        return 0
    end_us = row.get("t1")
    return end_us if isinstance(end_us, int) and "skew_ms" not in row else 0


def _text(file: Path) -> bytes:
    """Return what a segment holds.  At once: gzip's own reader hands it over 8 KiB at a time.  One
    member of gzip, as a broker writes it: of a file of many empty ones the rest would be copied for
    each.
    """
    unpacked = zlib.decompressobj(zlib.MAX_WBITS | 16)
    try:
        packed = file.read_bytes()
        if not packed:
            raise BadSegment("torn")
        data = unpacked.decompress(packed, TEXT_BYTES_MAX + 1)
    except zlib.error as error:
        raise BadSegment("gzip") from error
    if len(data) > TEXT_BYTES_MAX:
        raise BadSegment("too large")
    if not unpacked.eof or unpacked.unused_data:
        raise BadSegment("gzip")
    return data


def _object(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise BadSegment("torn") from error
    if not isinstance(value, dict):
        raise BadSegment("torn")
    return value


def _cut_overlaps(verdicts: Verdicts, known: dict[str, dict[str, Any]]) -> None:
    """Let each row count once where segments of one boot and stream overlap: the first keeps it.

    Row-level de-duplication costs more than all the rest (design/telemetry.md §3.3); ranges tell.
    """
    windows: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for entry in known.values():
        key = (entry["boot"], entry["stream"])
        windows.setdefault(key, []).append((entry["seq0"], entry["seq1"]))
    for segment in sorted(verdicts.fresh, key=lambda item: (item.boot, item.stream, item.seq0)):
        others = windows.setdefault((segment.boot, segment.stream), [])
        # A late segment that lies wholly between known ones fills a gap; true overlaps are cut.
        reached = [high for low, high in others if low <= segment.seq0 <= high]
        if reached:
            segment.first_seq = min(max(reached) + 1, segment.seq1 + 1)
            verdicts.overlapping_rows += segment.first_seq - segment.seq0
        others.append((segment.seq0, segment.seq1))
