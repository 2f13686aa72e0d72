"""One run: pull, verify, ingest, recompute the touched hours, commit, publish.

design/telemetry.md §7.1.

Nothing is changed before the commit, only added; a crash at any point leaves the old tables as they
were.  What a run says goes through `say`, in plain words.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from brokerd_telemetry import commit, freshness, schema, session, sources, verify

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from brokerd_telemetry.quality import NodeHour
    from brokerd_telemetry.tables.inputs import Inputs

#: Later rows do not change tables any more (design/telemetry.md §10).
LATE_HOURS = 72
#: Rows of a file of silver, and of a task that writes one: below, a core less is faster.
FILE_ROWS = 500_000
TASK_ROWS_MIN = 20_000
#: Tables are made beside each other: much of each one's time is the driver's planning.
TABLES_AT_ONCE = 3

Say = Callable[[str], None]


@dataclass(slots=True, frozen=True)
class Options:
    """What a run is asked to do."""

    cluster: str | None
    out_dir: Path
    spark: session.SparkSettings
    access: sources.Access | None = None
    raw_dir: Path | None = None
    release: bool = False
    #: The time, for tests; None: the clock's.
    now_us: int | None = None


@dataclass(slots=True)
class Result:
    """What a run did."""

    run_id: str
    segments: int = 0
    rows: int = 0
    bad_rows: int = 0
    hours: int = 0
    quarantined: int = 0
    findings: int = 0
    seconds: float = 0.0
    #: Seconds by step, in order.
    steps: dict[str, float] = field(default_factory=dict)

    def in_words(self) -> str:
        """Return where the time went."""
        return ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self.steps.items())


def run(options: Options, say: Say, warm: SparkSession | None = None) -> Result:
    """Do everything; raises LedgerError, SourceError, SparkUnavailable with text for people.

    warm: a session that is used and left running.
    """
    began = time.monotonic()
    if warm is None:
        # Before anything is pulled: what is missing here is known at once.
        session.find_java()
    now = time.gmtime()
    run_id = f"{time.strftime('%Y%m%dT%H%M%S', now)}-{uuid4().hex[:8]}"
    options.out_dir.mkdir(parents=True, exist_ok=True)
    ledger = commit.Ledger(options.out_dir)
    with ledger.lease(run_id):
        result = Run(options, ledger, run_id, say, warm).go()
        result.seconds = time.monotonic() - began
        return result


class Run:
    """The steps of one run; `manifest` grows from the current one to the next."""

    def __init__(
        self,
        options: Options,
        ledger: commit.Ledger,
        run_id: str,
        say: Say,
        warm: SparkSession | None = None,
    ) -> None:
        self.warm = warm
        self.options = options
        self.out_dir = options.out_dir
        self.ledger = ledger
        self.run_id = run_id
        self.say = say
        self.manifest = ledger.load()
        self.now_us = options.now_us or time.time_ns() // 1000
        self.began = time.monotonic()
        self.result = Result(run_id)

    def go(self) -> Result:
        """Run through; return early when there is nothing new."""
        with self._timed("pull and verify"):
            raw_dir, verdicts = self._plan()
        if not verdicts.fresh:
            self.say("no new telemetry; the tables stay as they are")
            return self.result
        self.result.segments = len(verdicts.fresh)
        rows = sum(segment.rows for segment in verdicts.fresh)
        starts = "" if self.warm else "; Spark starts"
        self.say(f"{len(verdicts.fresh)} new segments with {rows:,} rows{starts}")
        with self._spark(rows) as spark:
            with self._timed("rows"):
                hours = self._ingest(spark, raw_dir, verdicts)
            with self._timed("tables"):
                self._tables(spark, hours, verdicts)
        with self._timed("commit and report"):
            self._commit(verdicts)
            self._publish()
        return self.result

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.result.steps[name] = round(time.monotonic() - began, 3)

    @contextmanager
    def _spark(self, rows: int) -> Iterator[SparkSession]:
        """A session for this run: the warm one, or one of its own."""
        if self.warm is not None:
            try:
                yield self.warm
            finally:
                self.warm.catalog.clearCache()
            return
        with self._timed("Spark's start"):
            spark = session.start(replace(self.options.spark, rows=rows))
        try:
            yield spark
        finally:
            spark.stop()

    # ---- plan and verify --------------------------------------------------------------------

    def _plan(self) -> tuple[Path, verify.Verdicts]:
        known = self.manifest.segments
        if self.options.access is not None:
            raw_dir = self.out_dir / "raw" / "v1"
            self.say(f"asking {len(self.options.access.addresses)} members for their telemetry")
            paths = {entry["path"] for entry in known.values()}
            pulled = sources.pull(self.options.access, raw_dir, paths, self.say)
            self.say(f"{pulled.segments} segments pulled, {pulled.size_bytes / 1024:,.0f} KiB")
        else:
            assert self.options.raw_dir is not None
            raw_dir = sources.raw_root(self.options.raw_dir)
        clusters = None if self.options.cluster is None else {self.options.cluster}
        rejected = set(self.manifest.run.get("rejected", ()))
        found = [path for path in sources.listed(raw_dir) if path not in rejected]
        verdicts = verify.judge(raw_dir, found, known, clusters)
        for path, reason in verdicts.quarantined:
            self.say(f"segment {path} goes to quarantine: {reason}")
            target = self.out_dir / "quarantine" / "segments" / f"{Path(path).name}.{reason}"
            commit.write_durably(target, (raw_dir / path).read_bytes())
        self.result.quarantined = len(verdicts.quarantined)
        return raw_dir, verdicts

    # ---- silver -----------------------------------------------------------------------------

    def _ingest(self, spark: SparkSession, raw_dir: Path, verdicts: verify.Verdicts) -> list[str]:
        """Write silver; return the hours whose tables must be made anew."""
        from brokerd_telemetry import ingest

        known_hours = sorted(self.manifest.tables.get("silver", {}))
        oldest_us = 0
        if known_hours:
            # Relative to what is known, so that an old directory can be evaluated at all.
            oldest_us = schema.hour_start_us(known_hours[-1]) - LATE_HOURS * schema.HOUR_US
        frame = ingest.rows_of(spark, raw_dir, verdicts.fresh, self.now_us, oldest_us)
        fresh = sum(segment.rows for segment in verdicts.fresh)
        cores = min(spark.sparkContext.defaultParallelism, fresh // TASK_ROWS_MIN)
        parts = max(1, cores, fresh // FILE_ROWS)
        files = ingest.write_silver(frame, self.out_dir, self.run_id, parts)
        silver = self.manifest.tables.setdefault("silver", {})
        for hour, entries in files.items():
            silver[hour] = silver.get(hour, []) + entries
        self.result.rows = sum(item["rows"] for items in files.values() for item in items)
        bad = self._bad_rows()
        self.result.bad_rows = sum(bad.values())
        self._bad = bad
        self.say(
            f"{self.result.rows:,} rows read"
            + (f", {self.result.bad_rows:,} quarantined" if bad else "")
        )
        # All later hours too: what a queue did in an hour is counted from the hour before.
        return [hour for hour in sorted(silver) if files and hour >= min(files)]

    def _bad_rows(self) -> dict[tuple[str, str, int], int]:
        import pyarrow.parquet

        counts: dict[tuple[str, str, int], int] = {}
        folder = self.out_dir / "quarantine" / "rows"
        for path in folder.rglob("*.parquet"):
            if f"run={self.run_id}" not in path.parts:
                continue
            values = dict(part.split("=", 1) for part in path.parts if "=" in part)
            hour_us = schema.hour_start_us(f"{values['dt']}T{values['hh']}")
            with pyarrow.parquet.ParquetFile(path) as file:
                for row in file.read(["cluster", "node"]).to_pylist():
                    key = (row["cluster"], row["node"], hour_us)
                    counts[key] = counts.get(key, 0) + 1
        return counts

    # ---- gold -------------------------------------------------------------------------------

    def _tables(self, spark: SparkSession, hours: list[str], verdicts: verify.Verdicts) -> None:
        from brokerd_telemetry import gold, ingest, quality

        self.result.hours = len(hours)
        if not hours:
            return
        self.say(f"making the tables of {len(hours)} hour{'s' if len(hours) > 1 else ''} anew")
        rows = ingest.read_silver(spark, self.out_dir, self.manifest.paths("silver", hours))
        observed = quality.observe(rows)
        quality.note_boots(self.manifest.boots, observed, verdicts.fresh)
        quality.judge(observed, self.manifest.boots)
        inputs = gold.prepare(
            spark, self.out_dir, self.manifest, hours, rows, quality.coverage(observed)
        )
        names = list(gold.TABLES)
        with ThreadPoolExecutor(TABLES_AT_ONCE) as pool:
            files = list(pool.map(lambda name: self._table(inputs, hours, name), names))
        for name, written in zip(names, files, strict=True):
            self.manifest.replace_hours(name, gold.hours_of(name, hours), written)
        self._driver_tables(observed, hours, verdicts)

    def _table(self, inputs: Inputs, hours: list[str], name: str) -> Any:
        from brokerd_telemetry import gold, sinks

        frame = gold.make(name, inputs, hours)
        return sinks.write_table(frame, self.out_dir, name, self.run_id, 1)

    def _driver_tables(
        self, observed: list[NodeHour], hours: list[str], verdicts: verify.Verdicts
    ) -> None:
        from brokerd_telemetry import findings, gold, quality, rings, sinks

        counts = {
            "quarantined": len(verdicts.quarantined),
            "duplicates": verdicts.duplicates,
            "overlapping": verdicts.overlapping_rows,
        }
        lines = quality.table(observed, verdicts.fresh, counts, self._bad)
        written = sinks.write_rows(
            lines, gold.QUALITY_SCHEMA, self.out_dir, "data_quality_1h", self.run_id
        )
        self.manifest.replace_hours("data_quality_1h", hours, written)
        cycles = rings.rows(
            sinks.read_rows(self.out_dir, self.manifest, "dlx_graph_1h", hours),
            sinks.read_rows(self.out_dir, self.manifest, "queue_1h", hours),
        )
        written = sinks.write_rows(
            cycles, gold.CYCLES_SCHEMA, self.out_dir, "dlx_cycle_1h", self.run_id
        )
        self.manifest.replace_hours("dlx_cycle_1h", hours, written)
        found = findings.evaluate(self.out_dir, self.manifest, hours)
        written = sinks.write_rows(
            found, gold.FINDINGS_SCHEMA, self.out_dir, "findings", self.run_id
        )
        self.manifest.replace_hours("findings", hours, written)
        self.result.findings = sum(
            item["status"] == "RAISED" and item["hour_us"] == schema.hour_start_us(hours[-1])
            for item in found
        )

    # ---- commit and publish -----------------------------------------------------------------

    def _commit(self, verdicts: verify.Verdicts) -> None:
        manifest = self.manifest
        manifest.parent, manifest.run_id = manifest.run_id, self.run_id
        manifest.cluster = self.options.cluster or ""
        for segment in verdicts.fresh:
            manifest.segments[segment.identity] = segment.entry()
        rejected = set(manifest.run.get("rejected", ()))
        manifest.run = {
            "finished_us": time.time_ns() // 1000,
            "seconds": round(time.monotonic() - self.began, 3),
            "steps": dict(self.result.steps),
            "segments": self.result.segments,
            "rows": self.result.rows,
            "bad_rows": self.result.bad_rows,
            "quarantined": self.result.quarantined,
            "duplicates": verdicts.duplicates,
            "rejected": sorted(rejected | {path for path, _ in verdicts.quarantined}),
            "ends_us": freshness.noted(manifest.run.get("ends_us", ()), manifest.as_of_us),
        }
        self._forget_old()
        self.ledger.commit(manifest)
        self.ledger.vacuum()

    def _forget_old(self) -> None:
        """design/telemetry.md §11: raw 7 days, silver and minutes 30 days, the rest 400 days."""
        hours = sorted(self.manifest.tables.get("silver", {}))
        if not hours:
            return
        newest_us = schema.hour_start_us(hours[-1])
        for name, table in self.manifest.tables.items():
            days = commit.SILVER_DAYS if name in ("silver", "queue_1m") else commit.GOLD_DAYS
            oldest = schema.hour_of(newest_us - days * 24 * schema.HOUR_US)
            for hour in [hour for hour in table if hour < oldest]:
                del table[hour]
        oldest = schema.hour_of(newest_us - commit.RAW_DAYS * 24 * schema.HOUR_US)
        segments = self.manifest.segments
        for identity in [key for key, entry in segments.items() if entry["hour"] < oldest]:
            if self.options.access is not None:
                (self.out_dir / "raw" / "v1" / segments[identity]["path"]).unlink(missing_ok=True)
                del segments[identity]

    def _publish(self) -> None:
        """Write report, metrics, findings and views; hand them to the members."""
        from brokerd_telemetry import publish

        files = publish.render(self.out_dir, self.manifest)
        folder = self.out_dir / "publish"
        for name, data in files.items():
            commit.write_durably(folder / name, data)
        access = self.options.access
        if access is None:
            return
        served = {name: files[name] for name in publish.SERVED}
        sources.put_results(access, served, self.say)
        if self.options.release:
            taken = {entry["path"] for entry in self.manifest.segments.values()}
            sources.release(access, taken, self.say)
