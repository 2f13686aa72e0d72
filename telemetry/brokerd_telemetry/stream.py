"""Continuous: Structured Streaming over arriving segments, each batch a run (ADR 42).

The stream's source is the directories that segments arrive in; its batches are lists of files, and
what is done with a batch is `job.run`, as by hand.  Exactly once comes from two ledgers that agree:
Spark's checkpoint says which files a batch has, and replays it after a crash; the tables' manifest
says which segments they hold, and leaves those out.  So a lost checkpoint costs a look at the
directory, nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brokerd_telemetry import collect, commit, job, sources

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Object storage is listed so often and no more: a listing is paid for, members are asked for free.
PLACES_EVERY_S = 3600.0
_POLL_S = 1.0
#: Of binaryFile, which opens a file only when a query asks for its content.
_FILES = "path STRING, modificationTime TIMESTAMP, length LONG, content BINARY"


class Stream:
    """One continuous job; `tell` gets the result of each batch that had something new."""

    def __init__(
        self, options: job.Options, spark: SparkSession, tell: Callable[[job.Result], None],
        say: job.Say,
    ) -> None:  # fmt: skip
        self.options = options
        self._spark = spark
        self._tell = tell
        self._say = say
        self._failed: Exception | None = None
        #: Where segments arrive.
        self._folders = sorted({self._folder(source) for source in options.sources})

    def _folder(self, source: sources.Source) -> Path:
        if source.directory is not None:
            return sources.raw_root(source.directory)
        self.options.own_raw.mkdir(parents=True, exist_ok=True)
        return self.options.own_raw

    def once(self) -> None:
        """Take what there is, and end."""
        self._bring(None)
        self._run({"availableNow": True}, None)

    def forever(self, every_s: int, ended: threading.Event) -> None:
        """Take what comes; a batch that fails is reported and tried again."""
        bringing = threading.Thread(
            target=self._bring_forever, args=(every_s, ended), name="bring", daemon=True
        )
        bringing.start()
        while not ended.is_set():
            try:
                self._run({"processingTime": f"{every_s} seconds"}, ended)
            except job.Failure as error:
                self._say(f"this run failed: {error}")
                ended.wait(every_s)

    def _run(self, trigger: dict[str, Any], ended: threading.Event | None) -> None:
        """Run one query until it ends by itself, `ended` is set, or a batch fails."""
        self._failed = None
        # pyspark's own kind of keyword arguments: exactly one of them.
        query = (
            self._arrivals()
            .writeStream.foreachBatch(self._batch)
            .option("checkpointLocation", str(self.options.out_dir / "stream"))
            .trigger(**trigger)
            .start()
        )
        try:
            while not query.awaitTermination(_POLL_S):
                if ended is not None and ended.is_set():
                    return
        except Exception:
            # What the batch said itself is better than what Spark makes of it.
            if self._failed is not None:
                raise self._failed from None
            raise
        finally:
            query.stop()

    def _arrivals(self) -> DataFrame:
        reader = (
            self._spark.readStream.format("binaryFile")
            .schema(_FILES)
            .option("recursiveFileLookup", "true")
            .option("pathGlobFilter", "*.jsonl.gz")
        )
        frames = [reader.load(str(folder)).select("path") for folder in self._folders]
        return reduce(lambda left, right: left.union(right), frames)

    def _batch(self, frame: DataFrame, _: int) -> None:
        arrived = tuple(Path(row[0].removeprefix("file:")) for row in frame.collect())
        try:
            result = job.run(replace(self.options, arrived=arrived), self._say, self._spark)
        except Exception as error:
            self._failed = error
            raise
        if result.segments:
            self._tell(result)

    # ---- what does not arrive by itself ------------------------------------------------------

    def _bring(self, kinds: Callable[[sources.Source], bool] | None) -> None:
        """Bring what members and object storage have to the directory that is streamed."""
        elsewhere = [
            source
            for source in self.options.sources
            if source.directory is None and (kinds is None or kinds(source))
        ]
        manifest = commit.Ledger(self.options.out_dir).load()
        asked = collect.Asked(manifest, self.options.own_raw, self._say)
        for source, found in zip(elsewhere, collect.ask(elsewhere, asked), strict=True):
            if isinstance(found, Exception):
                self._say(f"{source}: {found}")

    def _bring_forever(self, every_s: int, ended: threading.Event) -> None:
        left_s = 0.0
        while not ended.is_set():
            with_places = left_s <= 0
            try:
                self._bring(None if with_places else lambda source: source.place is None)
            except (*job.Failure, OSError) as error:
                # The batch beside it says so too, where it is the tables' ledger; members and
                # storage are asked again in any case.
                self._say(f"nothing was asked for new segments: {error}")
            left_s = (PLACES_EVERY_S if with_places else left_s) - every_s
            ended.wait(every_s)
