"""The tables of some clusters and hours, made anew from silver (design/telemetry.md §7.1, step 5).

Changes the manifest of the run and nothing else that anybody reads; `job` decides what is touched,
and commits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from brokerd_telemetry import findings, gold, quality, rings, schema, sinks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from brokerd_telemetry.quality import NodeHour
    from brokerd_telemetry.sinks import Live
    from brokerd_telemetry.tables.inputs import Inputs, Queues
    from brokerd_telemetry.verify import Verdicts

#: Tables are made beside each other: much of each one's time is the driver's planning.
TABLES_AT_ONCE = 3
#: So many rows are made tables at a time, or one hour: what Spark has to sort and to keep for it
#: fits its memory, whatever the number of hours.
PASS_ROWS = 6_000_000


@dataclass(slots=True, frozen=True)
class Batch:
    """What a run has read."""

    run_id: str
    verdicts: Verdicts
    #: Lines that are no rows, by cluster, member and hour.
    bad_rows: Mapping[tuple[str, str, int], int]
    #: Paths of segments that are refused, those of earlier runs too.
    refused: Collection[str]
    #: Of ingest.leads_us.
    leads_us: Mapping[str, int]
    #: By how many seconds the clocks of members that were asked are ahead of this machine's.
    clocks: quality.Clocks
    #: Gets a line about each table when it is made.
    say: Callable[[str], None]


def touched(live: Live, since: Mapping[str, str]) -> list[tuple[list[str], list[str]]]:
    """Return which clusters' which hours must be made anew, those of the same first hour together.

    since: by cluster, the first hour that it told something new of.  All its later hours too: what
    a queue did in an hour is counted from the hour before.
    """
    groups: dict[str, list[str]] = {}
    for cluster, first in sorted(since.items()):
        groups.setdefault(first, []).append(cluster)
    return [
        (clusters, [hour for hour in live.of(clusters).hours("silver") if hour >= first])
        for first, clusters in sorted(groups.items())
    ]


def passes(live: Live, hours: list[str]) -> list[list[str]]:
    """Return hours in passes, each of which begins with the last rows of the one before it, as the
    runs of an hourly job do.
    """
    found: list[list[str]] = [[]]
    count = 0
    for hour in hours:
        rows = sum(entry["rows"] for entry in live.entries("silver", [hour]))
        if found[-1] and count + rows > PASS_ROWS:
            found.append([])
            count = 0
        found[-1].append(hour)
        count += rows
    return found


def observe(live: Live, hours: list[str], batch: Batch) -> list[NodeHour]:
    """Return what the members of these clusters told of each hour."""
    observed, peers, off = quality.observe(live, hours)
    quality.note_boots(live.manifest.boots, observed, batch.verdicts.fresh, batch.leads_us)
    known = live.manifest.segments.values()
    fresh = [segment.entry() for segment in batch.verdicts.fresh]
    quality.note_lost_rows(observed, [*known, *fresh])
    quality.judge(observed, live.manifest.boots, peers, off)
    quality.note_clocks(observed, batch.clocks)
    return observed


def recompute(
    spark: SparkSession, live: Live, hours: list[str], reported: list[NodeHour], batch: Batch
) -> None:
    """Make all tables of these clusters and hours, and let the manifest say so.

    told: observe's of these hours and maybe others.
    """
    manifest = live.manifest
    starts_us = {schema.hour_start_us(hour) for hour in hours}
    observed = [one for one in reported if one.hour_us in starts_us]
    coverage = quality.coverage(observed)

    def write(name: str, inputs: Inputs) -> sinks.Files:
        frame = gold.make(name, inputs, hours)
        if frame is None:
            return {}
        with _reported(batch, name) as count:
            files = sinks.write_table(frame, live.out_dir, name, batch.run_id, 1)
            count.append(sum(entry["rows"] for own in files.values() for entry in own))
        return files

    def queues_of() -> Queues:
        with _reported(batch, "what queues did, of which tables are made"):
            return gold.queues_of(spark, live, hours, coverage, batch.run_id)

    with ThreadPoolExecutor(TABLES_AT_ONCE) as pool:
        queues = pool.submit(queues_of)
        inputs = gold.prepare(spark, live, hours, coverage, queues.result)
        made = {name: pool.submit(write, name, inputs) for name in gold.TABLES}
        queues.result()
        files = gold.queue_files(live, batch.run_id)
        files |= {name: written.result() for name, written in made.items()}
    for name, written in files.items():
        manifest.replace_hours(name, gold.hours_of(name, hours), written, live.clusters)
    gold.forget(inputs, live, batch.run_id)
    _driver_tables(live, observed, hours, batch)


@contextmanager
def _reported(batch: Batch, what: str) -> Iterator[list[int]]:
    """Say how long a table took, and how many rows it has, which the block notes."""
    began = time.monotonic()
    count: list[int] = []
    yield count
    rows = "".join(f"{number:,} rows, " for number in count)
    batch.say(f"{what}: {rows}{time.monotonic() - began:.1f} s")


def _driver_tables(live: Live, observed: list[NodeHour], hours: list[str], batch: Batch) -> None:
    """Make the small tables that the driver computes itself, each from those before it."""

    def put(table: str, lines: list[findings.Row], schema: object) -> None:
        with _reported(batch, table) as count:
            written = sinks.write_rows(lines, schema, live.out_dir, table, batch.run_id)
            count.append(len(lines))
        live.manifest.replace_hours(table, hours, written, live.clusters)

    known = live.manifest.segments.values()
    fresh = [segment.entry() for segment in batch.verdicts.fresh]
    names = {
        "segments_quarantined": batch.refused,
        "segments_duplicate": batch.verdicts.duplicates,
    }
    lines = quality.table(observed, [*known, *fresh], batch.bad_rows, names)
    put("data_quality_1h", lines, gold.QUALITY_SCHEMA)
    cycles = rings.rows(live.rows("dlx_graph_1h", hours), live.rows("queue_1h", hours))
    put("dlx_cycle_1h", cycles, gold.CYCLES_SCHEMA)
    put("findings", findings.evaluate(live, hours), gold.FINDINGS_SCHEMA)
