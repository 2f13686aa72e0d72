"""One run: pull, verify, ingest, recompute the touched hours, commit, publish.

design/telemetry.md §7.1.

Nothing is changed before the commit, only added; a crash at any point leaves the old tables as they
were.  What a run says goes through `say`, in plain words.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from brokerd_telemetry import (
    collect,
    commit,
    delta,
    freshness,
    objects,
    progress,
    schema,
    session,
    sources,
    verify,
)
from brokerd_telemetry.manifest import LedgerError, Manifest
from brokerd_telemetry.sinks import Live
from brokerd_telemetry.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from brokerd_telemetry import recompute

#: Rows of a file of silver, and of a task that writes one: below, a core less is faster.
FILE_ROWS = 500_000
TASK_ROWS_MIN = 20_000

Say = Callable[[str], None]
#: What a segment's file was like (_stamp), and why it was refused.
Refused = tuple[str, str]

#: What ends a run with a text for people, and may be over when it is tried again.
Failure = (
    LedgerError, sources.SourceError, objects.ObjectError, delta.DeltaUnavailable,
)  # fmt: skip


@dataclass(slots=True, frozen=True)
class Options:
    """What a run is asked to do."""

    sources: tuple[sources.Source, ...]
    out_dir: Path
    spark: session.SparkSettings
    #: Where the tables live; None: in out_dir.
    place: objects.Place | None = None
    release: bool = False
    #: Keep a Delta Lake log of each table (delta.py).
    keeps_delta: bool = False
    #: Segments to take without asking the sources; None: ask them.
    arrived: tuple[Path, ...] | None = None
    #: The time, for tests; None: the clock's.
    now_us: int | None = None

    @property
    def own_raw(self) -> Path:
        """Return where segments are kept that come from elsewhere."""
        return self.out_dir / "raw" / "v1"


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
    """Do everything; raises LedgerError, SourceError, SparkUnavailable, DeltaUnavailable with text
    for people.

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
    try:
        with ledger.lease(run_id):
            try:
                result = Run(options, ledger, run_id, say, warm).go()
            except Exception as error:
                reported = _in_words(options.out_dir, error)
                # What it wrote counts for nothing, and may be what the disk is full of.
                ledger.forget(run_id)
                if reported is error:
                    raise
                raise reported from error
    except OSError as error:
        # The lease itself found no room.
        reported = _in_words(options.out_dir, error)
        if reported is error:
            raise
        raise reported from error
    result.seconds = time.monotonic() - began
    return result


def _in_words(out_dir: Path, error: Exception) -> Exception:
    """Return what tells that a disk is full, if that was it (a task's traceback says so), or which
    file is in the way; all else as it is.
    """
    if not any(os.strerror(code) in str(error) for code in (errno.ENOSPC, errno.EDQUOT)):
        if isinstance(error, OSError) and error.filename is not None:
            return LedgerError(
                f"{error.filename}: {error.strerror}. The tables are as they were. Let the job's "
                "user read the segments and write to --out, and run again"
            )
        return error
    free = (
        f"{folder} has {shutil.disk_usage(folder).free / 1e6:,.0f} MB left"
        for folder in (out_dir, Path(tempfile.gettempdir()))
    )
    return LedgerError(
        f"no room: {', '.join(free)}. The tables are as they were. Make room, or give --out (or "
        "TMPDIR, where Spark works) a disk with more, and run again"
    )


def _stamp(file: Path) -> str:
    """Return what changes with a file: one that was seen half copied is judged again."""
    status = file.stat()
    return f"{status.st_size} {status.st_mtime_ns}"


def _as_refused(manifest: Manifest) -> dict[str, Refused]:
    """Return the segments that were refused; of an earlier version, as if they had changed."""
    found = manifest.run.get("rejected", {})
    if isinstance(found, list):
        return dict.fromkeys(found, ("", ""))
    return {path: (stamp, reason) for path, (stamp, reason) in found.items()}


class Run:
    """The steps of one run; `manifest` grows from the current one to the next.

    In one piece: each step goes on from what the ones before it found.
    """

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
        self.store = None if options.place is None else Store(options.place, options.out_dir, say)
        #: Clusters with something new.
        self.touched: set[str] = set()
        #: Segments that were refused now: what their files were like, and why.
        self.refused: dict[str, Refused] = {}
        #: What could not be asked, and why.
        self.failed: dict[str, str] = {}
        #: By source, members that did not answer, and why.
        self.absent: dict[str, dict[str, str]] = {}
        #: By source ("" if it has no name) and member, how far its clock is ahead, in seconds.
        self.clocks: dict[tuple[str, str], float] = {}
        #: By source, the addresses of those that did.
        self.reached: dict[str, tuple[str, ...]] = {}
        self.now_us = options.now_us or time.time_ns() // 1000
        self.began = time.monotonic()
        self.result = Result(run_id)

    def go(self) -> Result:
        """Run through; return early when there is nothing new."""
        with self._timed("pull and verify"):
            if self.store is not None:
                self.store.begin()
            self.manifest = self.ledger.load()
            self.live = Live(
                self.out_dir, self.manifest, fetch=None if self.store is None else self.store.fetch
            )
            verdicts = self._plan()
        if not verdicts.fresh:
            self._tell_nothing_new()
            self._publish_again()
            self._begin_delta()
            return self.result
        self.result.segments = len(verdicts.fresh)
        rows = sum(segment.rows for segment in verdicts.fresh)
        starts = "" if self.warm else "; Spark starts"
        self.say(f"{len(verdicts.fresh)} new segments with {rows:,} rows{starts}")
        with self._spark(rows) as spark:
            with self._timed("rows"):
                since, batch = self._ingest(spark, verdicts)
            with self._timed("tables"):
                self._tables(spark, since, batch)
        with self._timed("commit and report"):
            self._commit(verdicts)
            self._publish()
        return self.result

    def _tell_nothing_new(self) -> None:
        from brokerd_telemetry import findings

        is_first = not self.manifest.run_id and self.options.arrived is None
        if is_first and all(each.directory for each in self.options.sources):
            where = ", ".join(str(each.directory) for each in self.options.sources)
            raise sources.SourceError(f"there is no segment that can be read in {where}")
        self.say("no new telemetry; the tables stay as they are")
        standing = findings.latest(self.live)
        self.result.findings = sum(row["status"] == "RAISED" for row in standing)

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

    def _plan(self) -> verify.Verdicts:
        """Bring new segments here and judge them, source by source."""
        verdicts = verify.Verdicts()
        known = dict(self.manifest.segments)
        rejected = _as_refused(self.manifest)
        for source, found in zip(self.options.sources, self._collect(), strict=True):
            if found is None:
                continue
            clusters = None if source.cluster is None else {source.cluster}
            new = [
                path
                for path in found.paths
                if path not in rejected or rejected[path][0] != _stamp(found.raw_dir / path)
            ]
            judged = self._judge(found.raw_dir, new, known, clusters)
            known |= {segment.identity: segment.entry() for segment in judged.fresh}
            for path, reason in judged.quarantined:
                self.say(f"segment {path} goes to quarantine: {reason}")
                self.refused[path] = (_stamp(found.raw_dir / path), reason)
                target = self.out_dir / "quarantine" / "segments" / f"{Path(path).name}.{reason}"
                commit.write_durably(target, (found.raw_dir / path).read_bytes())
            verdicts.add(judged)
        self.result.quarantined = len(verdicts.quarantined)
        return verdicts

    def _judge(
        self,
        raw_dir: Path,
        new: list[str],
        known: dict[str, dict[str, Any]],
        clusters: set[str] | None,
    ) -> verify.Verdicts:
        read: list[str] = []
        with progress.reported(
            self.say, lambda: f"{len(read):,} of {len(new):,} segments verified"
        ):
            return verify.judge(raw_dir, new, known, clusters, read.append)

    def _collect(self) -> list[collect.Found | None]:
        """Ask all sources; one that fails is reported, SourceError if all of them do."""
        own_raw, arrived = self.options.own_raw, self.options.arrived
        if arrived is not None:
            return [collect.of(source, own_raw, arrived) for source in self.options.sources]
        asked = collect.Asked(self.manifest, own_raw, self.say)
        found: list[collect.Found | None] = []
        for source, answer in zip(
            self.options.sources, collect.ask(self.options.sources, asked), strict=True
        ):
            if isinstance(answer, collect.Found):
                found.append(answer)
                if answer.pulled is not None and source.access is not None:
                    self.reached[str(source)] = tuple(answer.pulled.reached)
                    self.absent[source.cluster or ""] = answer.pulled.absent
                    for name, ahead_s in answer.pulled.clocks.items():
                        self.clocks[source.cluster or "", name] = ahead_s
                continue
            found.append(None)
            self.failed[str(source)] = str(answer)
            if len(self.options.sources) > 1:
                self.say(f"{source}: {answer}")
        if all(item is None for item in found):
            raise sources.SourceError("; ".join(self.failed.values()))
        return found

    # ---- silver and gold --------------------------------------------------------------------

    def _ingest(
        self, spark: SparkSession, verdicts: verify.Verdicts
    ) -> tuple[dict[str, str], recompute.Batch]:
        """Write silver; return since when each cluster's tables must be made anew."""
        from brokerd_telemetry import ingest, recompute

        # Relative to what is known of each, so that an old directory can be evaluated at all.
        oldest_us = {
            cluster: schema.hour_start_us(first)
            for cluster in self.manifest.clusters()
            if (first := collect.late_from(self.manifest, cluster)) is not None
        }
        fresh = sum(segment.rows for segment in verdicts.fresh)
        cores = min(spark.sparkContext.defaultParallelism, fresh // TASK_ROWS_MIN)
        parts = max(1, cores, fresh // FILE_ROWS)
        files, bad = ingest.write_silver(
            spark, verdicts.fresh, (self.now_us, oldest_us), self.out_dir, self.run_id, parts,
            self.say,
        )  # fmt: skip
        silver = self.manifest.tables.setdefault("silver", {})
        since: dict[str, str] = {}
        for hour, entries in files.items():
            silver[hour] = silver.get(hour, []) + entries
            for entry in entries:
                first = since.setdefault(entry["cluster"], hour)
                since[entry["cluster"]] = min(first, hour)
        self.result.rows = sum(item["rows"] for items in files.values() for item in items)
        bad_rows = ingest.count_bad(self.out_dir, bad)
        self.result.bad_rows = sum(bad_rows.values())
        self.say(
            f"{self.result.rows:,} rows read"
            + (f", {self.result.bad_rows:,} quarantined" if bad_rows else "")
        )
        leads_us = ingest.leads_us(verdicts.fresh, self.now_us)
        batch = recompute.Batch(
            self.run_id, verdicts, bad_rows, self._refused(verdicts), leads_us, self.clocks,
            self.say,
        )  # fmt: skip
        return since, batch

    def _refused(self, verdicts: verify.Verdicts) -> dict[str, Refused]:
        """Return which segments are refused: one that was whole later is not any more."""
        taken = {entry["path"] for entry in self.manifest.segments.values()}
        taken |= {segment.path for segment in verdicts.fresh}
        refused = _as_refused(self.manifest) | self.refused
        return {path: why for path, why in refused.items() if path not in taken}

    def _tables(self, spark: SparkSession, since: dict[str, str], batch: recompute.Batch) -> None:
        from brokerd_telemetry import recompute

        self.touched = set(since)
        groups = recompute.touched(self.live, since)
        self.result.hours = len({hour for _, hours in groups for hour in hours})
        for clusters, hours in groups:
            of = f" of {len(clusters):,} clusters" if len(self.options.sources) > 1 else ""
            count = f"{len(hours)} hour{'s' if len(hours) > 1 else ''}"
            self.say(f"making the tables of {count}{of} anew")
            live = self.live.of(clusters)
            reported = recompute.observe(live, hours, batch)
            parts = recompute.passes(live, hours)
            for number, part in enumerate(parts):
                if number:
                    self.say(f"pass {number + 1} of {len(parts)}, from {part[0]} on")
                recompute.recompute(spark, live, part, reported, batch)
            newest = live.rows("findings", hours[-1:])
            self.result.findings += sum(row["status"] == "RAISED" for row in newest)

    # ---- commit and publish -----------------------------------------------------------------

    def _commit(self, verdicts: verify.Verdicts) -> None:
        manifest = self.manifest
        manifest.parent, manifest.run_id = manifest.run_id, self.run_id
        named = {source.cluster or "" for source in self.options.sources}
        manifest.cluster = named.pop() if len(named) == 1 else ""
        for segment in verdicts.fresh:
            manifest.segments[segment.identity] = segment.entry()
        manifest.run = {
            "finished_us": time.time_ns() // 1000,
            "seconds": round(time.monotonic() - self.began, 3),
            "steps": dict(self.result.steps),
            "segments": self.result.segments,
            "rows": self.result.rows,
            "bad_rows": self.result.bad_rows,
            "quarantined": self.result.quarantined,
            "duplicates": len(verdicts.duplicates),
            "rejected": self._refused(verdicts),
            "ends_us": freshness.noted(manifest.run.get("ends_us", ()), manifest.as_of_us()),
            "failed": self.failed,
            "absent": self.absent,
        }
        self._forget_old()
        added = self.ledger.added(manifest)
        if self.store is not None:
            # First there: a crash before the disk's own commit is made good by the next begin.
            self.store.commit(manifest, added)
            self.store.vacuum()
        self.ledger.commit(manifest)
        shutil.rmtree(self.out_dir / "work", ignore_errors=True)
        self.ledger.vacuum()

    def _forget_old(self) -> None:
        """design/telemetry.md §11: raw 7 days, silver and minutes 30 days, the rest 400 days."""
        hours = self.manifest.hours("silver")
        if not hours:
            return
        newest_us = schema.hour_start_us(hours[-1])
        for name, table in self.manifest.tables.items():
            days = commit.SILVER_DAYS if name in ("silver", "queue_1m") else commit.GOLD_DAYS
            oldest = schema.hour_of(newest_us - days * 24 * schema.HOUR_US)
            for hour in [hour for hour in table if hour < oldest]:
                del table[hour]
        if all(source.directory is not None for source in self.options.sources):
            # Their files stay where they are, so they must be known.
            return
        oldest = schema.hour_of(newest_us - commit.RAW_DAYS * 24 * schema.HOUR_US)
        reads_in_place = any(source.directory is not None for source in self.options.sources)
        segments = self.manifest.segments
        for identity in [key for key, entry in segments.items() if entry["hour"] < oldest]:
            own = self.options.own_raw / segments[identity]["path"]
            if own.exists() or not reads_in_place:
                own.unlink(missing_ok=True)
                del segments[identity]

    def _publish_again(self) -> None:
        """Publish what a run committed that was ended before it had published it."""
        keeper = self.store or self.ledger
        if self.manifest.run_id and keeper.published() != self.manifest.run_id:
            self.say("the last run was ended before it had published; this is made good")
            self.touched = set(self.manifest.clusters())
            self._publish()

    def _publish(self) -> None:
        """Write report, metrics, findings and views; hand them to the members."""
        from brokerd_telemetry import publish

        files = publish.render(self.live, self._base, self.touched)
        if self.options.keeps_delta:
            files |= self._for_trino()
        for name, data in files.items():
            commit.write_durably(self.out_dir / "publish" / name, data)
        if self.store is not None:
            self.store.publish(files)
        for source in self.options.sources:
            if source.access is None or str(source) in self.failed:
                continue
            folder = publish.folder_of(self.manifest, source.cluster)
            if folder is None or f"{folder}report.html" not in files:
                # Nothing of it was ever read, or nothing new.
                continue
            served = {name: files[folder + name] for name in publish.SERVED}
            reached = self.reached.get(str(source), source.access.addresses)
            access = replace(source.access, addresses=reached)
            sources.put_results(access, served, self.say)
            if self.options.release:
                taken = {entry["path"] for entry in self.manifest.segments.values()}
                sources.release(access, taken, self.say)
        self._bring_delta()
        (self.store or self.ledger).note_published(self.manifest.run_id)

    @property
    def _base(self) -> str:
        """What the tables' paths lie below."""
        return str(self.out_dir.resolve()) if self.store is None else self.store.place.url

    def _for_trino(self) -> dict[str, bytes]:
        return {delta.TRINO: delta.trino_sql(self._base, self.live)}

    def _bring_delta(self) -> None:
        if self.options.keeps_delta:
            place = self.options.place
            delta.bring_up_to_date(self._base, self.live, place.storage_options if place else dict)

    def _begin_delta(self) -> None:
        """Make the logs of tables that have none, though there is nothing new in them."""
        if not self.options.keeps_delta or not self.manifest.run_id:
            return
        if (self.out_dir / "publish" / delta.TRINO).exists():
            return
        self._bring_delta()
        files = self._for_trino()
        commit.write_durably(self.out_dir / "publish" / delta.TRINO, files[delta.TRINO])
        if self.store is not None:
            self.store.publish(files)
