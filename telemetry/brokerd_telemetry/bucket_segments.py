"""Segments in object storage: shipped there beside a cluster, fetched by a run over many.

design/telemetry.md §6.4.  Names are those of the members (`raw/v1/cluster=…/node=…/dt=…/hh=…/…`)
below the place's prefix.  A run asks for the members of a cluster once and for each member's names
once, from the oldest hour on that rows may still be late for: names hold all that is needed, so no
object is looked at twice (ADR 38).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING

from brokerd_telemetry import objects, verify
from brokerd_telemetry.commit import write_durably
from brokerd_telemetry.schema import partition_of

if TYPE_CHECKING:
    from brokerd_telemetry.sources import Pulled

RAW = "raw/v1/"
#: A member seals at 8 MiB of text by default; more than this is refused as hostile.
SEGMENT_BYTES_MAX = 64 * 1024 * 1024


def fetch(
    place: objects.Place,
    raw_dir: Path,
    known: Collection[str],
    cluster: str | None,
    since: Callable[[str], str | None],
    pulled: Pulled,
) -> None:
    """Bring new segments to the run's disk; counts them in `pulled`.

    known: paths of segments that earlier runs took.  since: by a cluster's directory, the hour
    before which nothing is listed.
    """
    folders = (
        [verify.cluster_folder(cluster)]
        if cluster is not None
        else [name for name in place.folders(RAW) if name.startswith("cluster=")]
    )
    wanted: list[objects.Entry] = []
    for folder in folders:
        first = since(folder)
        for node in place.folders(f"{RAW}{folder}/"):
            below = f"{RAW}{folder}/{node}/"
            # Names are listed in order, so those of an hour come after the hour's own name.
            after = "" if first is None else f"{below}{partition_of(first)}"
            for entry in place.entries(below, after):
                path = entry.name.removeprefix(RAW)
                is_segment = verify.SEGMENT_PATH.fullmatch(path) is not None
                if is_segment and path not in known and not (raw_dir / path).exists():
                    wanted.append(entry)

    def bring(entry: objects.Entry) -> None:
        found = place.get(entry.name, SEGMENT_BYTES_MAX)
        # Listed and gone: its retention is over.
        if found is not None:
            write_durably(raw_dir / entry.name.removeprefix(RAW), found[0])

    objects.together(bring, wanted)
    pulled.segments += len(wanted)
    pulled.size_bytes += sum(entry.size for entry in wanted)


def ship(place: objects.Place, path: str, data: bytes, say: Callable[[str], None]) -> None:
    """Put a segment there; the same name has the same octets, so one that is there stays."""
    try:
        place.swap(f"{RAW}{path}", data, None)
    except objects.Conflict:
        say(f"segment {path} was there already")
