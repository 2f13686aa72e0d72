"""The write-ahead log of a node: one for all its groups (design/replication.md §2.7, §2.8, §3).

For cluster/ (the driver) and tools; reads no network, knows no asyncio.

Who may call what.  Every change is split: a part for THE writer thread that ends with a sync, and a
part for the event loop that makes the result visible afterwards.  So the indexes belong to the
event loop, the files to the writer thread, and the hot path needs no lock between them.

    writer thread                         event loop, after it returned
    write(writes)                         written(writes)
    save_snapshot(uid, snapshot, live)    snapshot_saved(uid, snapshot, live)
    install_snapshot(uid, snapshot, hs)   snapshot_installed(uid, snapshot, hs)
    stage(chunks)                         staged(chunks)         of a snapshot that is to come
    mark_refilled(uid)                    refilled(uid)
    settle()                              and those of `regressions`, see there
    collect_write(work)                   collected(work)        before both: work = collect()

    any thread, complete in themselves:   bootstrap, remove_group, stats
    event loop only:                      log, groups, set_live, collect, begin_staging, give_up,
                                          limit_cache and every GroupLog
    either, when nothing else runs:       open, close, begin_anew, accept_loss

The loop parts must be called in the order in which the writer parts ran, with the same objects.
StorageFailed from any of them is fatal: the log refuses everything after it, the process must end.

Damage: `GroupLog.damaged` True means that something synced could not be read back.  Such a member
must neither vote nor lead; the leader sends it what is missing (entries from last_index() + 1 or a
snapshot), and when it has caught up the driver calls mark_refilled/refilled.  An installed snapshot
alone heals only entries that could not be read: it may be older than what was lost.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from brokerd.raft import membership
from brokerd.raft.messages import CATALOG_GROUP, Configuration, HardState, Snapshot
from brokerd.storage import (
    collection,
    group_log,
    records,
    recovery,
    snapshots,
    staging,
    suspected_regressions,
)
from brokerd.storage.collection import Collection, Ledger
from brokerd.storage.config import WalConfig
from brokerd.storage.disk import Disk, lock
from brokerd.storage.errors import CorruptLog, DamagedEntry, StorageFailed
from brokerd.storage.group_log import CATALOG_CACHE_BYTES, DecodeConfiguration, EntryCache, GroupLog
from brokerd.storage.records import HEADER_BYTES, GroupState
from brokerd.storage.removed_groups import packed
from brokerd.storage.segments import ActiveSegment, SegmentFiles
from brokerd.storage.staging import StagedChunk, Staging
from brokerd.storage.writer import GroupWrite, LogWriter, Record, WriterState

__all__ = ["Collection", "GroupWrite", "WalConfig", "WalStats", "WriteAheadLog"]


@dataclass(slots=True)
class WalStats:
    """For metrics and `brokerctl`."""

    bytes_on_disk: int
    segments: int
    syncs: int
    last_sync_ms: float
    bytes_written: int
    cached_bytes: int


class WriteAheadLog:
    """In one piece: the door of the room; most methods hand over to the module that does it. The
    halves of a change, one per thread (the module's table), stand beside each other.
    """

    def __init__(
        self,
        files: SegmentFiles,
        writer: LogWriter,
        lock_descriptor: int,
        decode: DecodeConfiguration,
    ) -> None:
        self._files = files
        self.disk = files.disk
        self._writer = writer
        self._config = files.config
        self._lock_descriptor = lock_descriptor
        self._decode = decode
        self._readers = files.read, self._read_snapshot  # bound once for all groups
        self._cache = EntryCache(files.config.cache_bytes)
        self._catalog_cache = EntryCache(CATALOG_CACHE_BYTES)
        self._groups: dict[int, GroupLog] = {}
        self._ledger = Ledger()
        #: Places of lost records of unknown groups: a group that is not known may have been there.
        self._lost: set[int] = set()
        self.regressions = suspected_regressions.SuspectedRegressions(
            writer, self._groups, self._lost
        )
        #: Hand-over from other threads to the event loop (deque operations are atomic).
        self._removed: deque[int] = deque()
        self._installed: deque[tuple[int, int, int]] = deque()
        #: Number of each group's newest staging.
        self._stagings: dict[int, int] = {}
        #: Snapshot files that are not read any more; the writer thread deletes them.
        self._obsolete: deque[Path] = deque()

    # ---- opening --------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        directory: Path,
        config: WalConfig,
        report: Callable[[str], None] | None = None,
        *,
        disk: Disk | None = None,
        decode_configuration: DecodeConfiguration | None = None,
    ) -> WriteAheadLog:
        """Recover the log in `directory`, or create it.

        Raises DirectoryLocked, UnknownFormat, WrongNode, CorruptLog (nothing was changed then) or
        StorageFailed.  `report` gets a line for everything that was cut off or is damaged.
        `decode_configuration` reads the data of CONFIG entries (default: the Raft core's).
        """
        config.validate()
        say = report or (lambda line: None)
        disk = disk or Disk()
        directory.mkdir(parents=True, exist_ok=True)
        disk.sync_directory(directory.parent)
        lock_descriptor = lock(directory)
        files = SegmentFiles(directory, config, disk, say)
        try:
            found = recovery.recover(directory, disk, config.node_id)
            recovery.report_all(found, say)
            files.adopt_leftovers()
            writer = _start_writer(files, found)
            log = cls(
                files,
                writer,
                lock_descriptor,
                decode_configuration or membership.decode_configuration,
            )
            log._adopt(found)
        except OSError as error:
            files.close()
            os.close(lock_descriptor)
            raise StorageFailed(f"cannot open the log in {directory}: {error}") from error
        except BaseException:
            files.close()
            os.close(lock_descriptor)
            raise
        return log

    def _adopt(self, found: recovery.Recovery) -> None:
        self._lost.update(found.lost)
        kept: set[Path] = set()
        for uid, recovered in found.groups.items():
            log = self._new_log(uid)
            state = recovered.state
            log.table = recovered.table
            log.hard_state = state.hard_state
            log.configuration = state.configuration
            log.config_indexes = tuple(recovered.config_indexes)
            log.snapshot_index = state.snapshot_index
            log.snapshot_term = state.snapshot_term
            self._stagings[uid] = recovered.last_staging
            log.lost = frozenset(recovered.lost) or group_log.NOTHING_LOST
            log.unreadable = recovered.unreadable or group_log.NOTHING_UNREADABLE
            if recovered.snapshot is not None:
                log.configuration = recovered.snapshot.snapshot.configuration
                log.live = recovered.snapshot.live
                kept.add(self._snapshot_path(uid, state.snapshot_index, state.snapshot_term))
            for segment, size in log.table.usage(0, len(log.table)):
                self._ledger.add(uid, segment, size)
        for path in self._files.directory.glob("snap-*.snap"):
            uid = int(path.name[5:21], 16)
            is_doubtful = uid in self._groups and self._groups[uid].damaged
            if path not in kept and not is_doubtful and not self._lost:
                self._files.disk.unlink(path)

    def _new_log(self, uid: int) -> GroupLog:
        cache = self._catalog_cache if uid == CATALOG_GROUP else self._cache
        log = GroupLog(uid, *self._readers, cache, self._decode)
        log.lost = frozenset(self._lost) or group_log.NOTHING_LOST
        # Atomic, should the event loop and bootstrap meet here: both get the same log.
        return self._groups.setdefault(uid, log)

    # ---- event loop -----------------------------------------------------------------------------

    def groups(self) -> list[int]:
        """Return the uids of all groups that are known (at first: those found at recovery)."""
        self._drain()
        return sorted(self._groups)

    def has_log(self, uid: int) -> bool:
        """Tell whether the group is known."""
        return uid in self._groups

    def log(self, uid: int) -> GroupLog:
        """Return the group's log; an empty one when the group is not known."""
        return self._groups.get(uid) or self._new_log(uid)

    def written(self, writes: Sequence[GroupWrite]) -> None:
        """Make what write() has synced visible to readers."""
        ledger = self._ledger
        removed = self._writer.state.removed
        for write in writes:
            if write.entries:
                ledger.note_seen(write.segment)
            if write.uid in removed:
                continue
            log = self._groups.get(write.uid) or self._new_log(write.uid)
            if write.hard_state is not None:
                log.hard_state = write.hard_state
            if write.entries:
                freed, size = log.put(write.entries, write.segment, write.offset)
                if freed:
                    ledger.free(freed)
                ledger.add(write.uid, write.segment, size)
        if self._removed:
            self._drain()

    def snapshot_saved(
        self, uid: int, snapshot: Snapshot, live: Sequence[tuple[int, int]] | None = None
    ) -> None:
        """Compact: entries up to the snapshot's index stay only in `live` (None: as set_live)."""
        log = self._groups.get(uid)
        if log is None or snapshot.index <= log.snapshot_index:
            return
        self._forget_snapshot(log)
        self._ledger.free(log.compact(snapshot, live))

    def begin_staging(self, uid: int) -> Staging:
        """Begin to take in a snapshot's live entries; staging.extend makes chunks of them."""
        number = self._stagings[uid] = staging.following(self._stagings.get(uid, 0))
        return Staging(uid, number)

    def staged(self, chunks: Sequence[StagedChunk]) -> None:
        """Take over where stage() has put the chunks."""
        for chunk in chunks:
            staging.settle(self._ledger, chunk)

    def give_up(self, staged: Staging) -> None:
        """What was staged will not be installed: it is garbage."""
        staging.give_up(self._ledger, staged)

    def snapshot_installed(self, uid: int, snapshot: Snapshot, hard_state: HardState) -> None:
        """Show the group as the leader's snapshot left it."""
        staged = staging.of(snapshot)
        placed = self._installed.popleft()
        assert placed[0] == uid, "snapshot_installed in another order than install_snapshot"
        _, segment, offset = placed
        if snapshot.live:
            self._ledger.note_seen(segment)
        if uid in self._writer.state.removed:
            if staged is not None:
                self.give_up(staged)
            return
        log = self.log(uid)
        self._forget_snapshot(log)
        self._ledger.free(log.reset(snapshot, hard_state))
        if staged is not None:
            staged.is_over = True
            log.table, log.live = staged.table, staged.live
        if snapshot.live:
            freed, size = log.put(list(snapshot.live), segment, offset)
            assert not freed, "an installed log was not empty"
            log.config_indexes = ()
            self._ledger.add(uid, segment, size)

    def set_live(self, uid: int, live: Sequence[tuple[int, int]]) -> None:
        """Tell which entries the machine refers to; the others up to the snapshot are garbage."""
        log = self._groups.get(uid)
        if log is not None:
            self._ledger.free(log.set_live(live))

    def cached_bytes(self) -> int:
        """Return the memory of recent entries."""
        return self._cache.used_bytes + self._catalog_cache.used_bytes

    def limit_cache(self, bytes_max: int | None) -> None:
        """Bound the memory of recent entries, at once; None: as configured."""
        configured = self._config.cache_bytes
        self._cache.limit(configured if bytes_max is None else min(bytes_max, configured))

    def collect(self) -> Collection | None:
        """Choose a bounded piece of cleaning; hand it to collect_write, then to collected."""
        self._drain()
        work = collection.choose(self._ledger, self._groups, self._writer, self._config)
        if work is None and self._obsolete:
            return Collection()
        return work

    def collected(self, work: Collection) -> None:
        """Take over what collect_write has moved."""
        collection.settle(self._ledger, self._groups, work)

    def refilled(self, uid: int) -> None:
        """The group is whole again."""
        log = self._groups.get(uid)
        if log is not None:
            self._ledger.free(log.heal())

    @property
    def promised(self) -> int:
        """Number of the last write with entries or votes that is synced."""
        return self._writer.promised

    @property
    def is_loose(self) -> bool:
        """What is known of the last sync is not durable yet: settle() makes it so."""
        return self._writer.is_mark_loose

    def _drain(self) -> None:
        """Forget the groups that were removed meanwhile."""
        while self._removed:
            log = self._groups.pop(self._removed.popleft(), None)
            if log is not None:
                self._forget_snapshot(log)
                self._ledger.removed(log.uid, log.cut(0))

    def _forget_snapshot(self, log: GroupLog) -> None:
        if log.snapshot_index:
            self._obsolete.append(
                self._snapshot_path(log.uid, log.snapshot_index, log.snapshot_term)
            )

    # ---- writer thread --------------------------------------------------------------------------

    def write(self, writes: Sequence[GroupWrite]) -> None:
        """One buffer, one write, one fdatasync for all groups; raises StorageFailed."""
        self._writer.write(writes)

    def save_snapshot(
        self, uid: int, snapshot: Snapshot, live: Sequence[tuple[int, int]] | None = None
    ) -> None:
        """Write a snapshot file, name it in the log (NoRoom); entries stay until snapshot_saved."""
        with self._writer.lock:
            state = self._state(uid)
            if snapshot.index <= state.snapshot_index:
                return
            self._write_snapshot(uid, snapshot, live)
            state.snapshot_index, state.snapshot_term = snapshot.index, snapshot.term
            state.tail = max(state.tail, snapshot.index)
            self._writer.append([self._writer.group_record(uid)])
        self._delete_obsolete()

    def stage(self, chunks: Sequence[StagedChunk]) -> None:
        """Write live entries of snapshots that are on their way, with one sync."""
        staging.write(self._writer, chunks)

    def install_snapshot(self, uid: int, snapshot: Snapshot, hard_state: HardState) -> None:
        """Replace the group by a leader's snapshot: its live entries were staged (StagedEntries),
        or come with it and are appended here.
        """
        staged = staging.of(snapshot)
        with self._writer.lock:
            state = self._state(uid)
            live = coalesce([entry.index for entry in snapshot.live])
            if staged is not None:
                live = staged.live
            self._write_snapshot(uid, snapshot, live)
            state.hard_state = hard_state
            state.configuration = snapshot.configuration
            state.snapshot_index, state.snapshot_term = snapshot.index, snapshot.term
            state.tail = snapshot.index
            state.staging = 0 if staged is None else staged.number
            _replace(state, self._groups.get(uid))
            batch = [self._writer.group_record(uid, reset=True)]
            batch += [
                Record(records.LIVE, uid, entry.index, entry.term, entry.data, entry.kind)
                for entry in snapshot.live
            ]
            self._writer.append(batch)
            first = batch[1] if snapshot.live else batch[0]
            # The event loop takes over one placement, not one per entry.
            if snapshot.live:
                self._writer.issued[first.segment] -= len(snapshot.live) - 1
            self._installed.append((uid, first.segment, first.offset))

    def mark_refilled(self, uid: int) -> None:
        """Record durably that the leader has made the group's damage good."""
        with self._writer.lock:
            state = self._state(uid)
            log = self._groups.get(uid)
            _heal(state, log)
            self._writer.append([self._writer.group_record(uid)])

    def is_removed(self, uid: int) -> bool:
        """Whether a group was forgotten: nothing that is written of it would count."""
        return uid in self._writer.state.removed

    def begin_anew(self, uid: int) -> None:
        """Void a group's log, that its leader may fill it from the first entry on; term, vote and
        members stay.  Not beside a running event loop: both halves in one.
        """
        log = self.log(uid)
        kept, configuration = log.initial_state()
        hard_state = HardState(kept.term, kept.vote)
        with self._writer.lock:
            state = self._state(uid)
            state.hard_state, state.configuration = hard_state, configuration
            state.snapshot_index = state.snapshot_term = state.tail = state.staging = 0
            self._writer.append([self._writer.group_record(uid, reset=True)])
        self._forget_snapshot(log)
        self._ledger.free(log.clear(configuration, hard_state))

    def settle(self) -> None:
        """Make durable what is known of the last sync: for a log that has come to rest."""
        self._writer.settle()

    def accept_loss(self) -> list[int]:
        """Declare everything that is damaged as gone; return the groups.  See repair.py.

        Not beside a running event loop: both halves in one.
        """
        damaged = [uid for uid in self.groups() if self._groups[uid].damaged]
        for uid in damaged:
            self.mark_refilled(uid)
            self.refilled(uid)
        with self._writer.lock:
            state = self._writer.state
            state.accepted.update(state.lost)
            state.lost = []
            self._lost.clear()
            batch = self._writer.lost_records()
            if batch:
                self._writer.append(batch)
        return damaged

    def collect_write(self, work: Collection) -> None:
        """Move and delete what collect() has chosen."""
        collection.execute(self._writer, work)
        self._delete_obsolete()

    def _write_snapshot(
        self, uid: int, snapshot: Snapshot, live: Sequence[tuple[int, int]] | None
    ) -> None:
        try:
            snapshots.write(self._files.disk, self._files.directory, uid, snapshot, live)
        except OSError as error:
            raise self._writer.fail(f"cannot write a snapshot of group {uid:x}", error) from error

    def _delete_obsolete(self) -> None:
        while self._obsolete:
            path = self._obsolete.popleft()
            try:
                self._files.disk.unlink(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise self._writer.fail("cannot delete an old snapshot", error) from error

    # ---- any thread -----------------------------------------------------------------------------

    def bootstrap(self, groups: Sequence[tuple[int, Configuration]]) -> None:
        """Durably give new groups their initial configurations, with one sync; a group that has
        one keeps it.
        """
        new: list[int] = []
        with self._writer.lock:
            for uid, configuration in groups:
                state = self._state(uid)
                if not state.configuration.voters:
                    state.configuration = configuration
                    log = self._groups.get(uid)
                    if log is not None and not log.lost:
                        # It begins behind what was lost, also at the next start.
                        state.healed = tuple(sorted(self._writer.state.lost))
                    new.append(uid)
            if new:
                self._writer.append([self._writer.group_record(uid) for uid in new])
        for uid in new:
            log = self._groups.get(uid) or self._new_log(uid)
            log.configuration = self._writer.state.groups[uid].configuration

    def remove_groups(self, uids: Sequence[int]) -> None:
        """Durably forget groups, with one sync; their uids are never used again."""
        with self._writer.lock:
            self._writer.append([Record(records.REMOVE, uid) for uid in uids])
            for uid in uids:
                self._writer.state.groups.pop(uid, None)
        self._removed.extend(uids)

    @property
    def stats(self) -> WalStats:
        counts = self._writer.counts
        return WalStats(
            self._files.bytes_on_disk(),
            len(self._files.sizes),
            counts.syncs,
            counts.last_sync_ms,
            counts.bytes_written,
            self._cache.used_bytes,
        )

    def stop_waiting(self) -> None:
        """A writer that waits for a descriptor fails at once: the member ends."""
        self._files.disk.stop_waiting()

    def close(self) -> None:
        """Release files and lock; nothing is written, every sync has happened already."""
        self._files.close()
        if self._lock_descriptor >= 0:
            os.close(self._lock_descriptor)
            self._lock_descriptor = -1

    # ---- common ---------------------------------------------------------------------------------

    def _state(self, uid: int) -> GroupState:
        return self._writer.state.groups.setdefault(uid, GroupState())

    def _snapshot_path(self, uid: int, index: int, term: int) -> Path:
        return snapshots.path_of(self._files.directory, uid, index, term)

    def _read_snapshot(self, uid: int, index: int, term: int) -> Snapshot:
        path = self._snapshot_path(uid, index, term)
        try:
            return snapshots.read(self._files.disk, path).snapshot
        except (OSError, CorruptLog) as error:
            raise DamagedEntry(uid, index, path.name) from error


def _replace(state: GroupState, log: GroupLog | None) -> None:
    """A snapshot comes instead of the entries that cannot be read.

    It does not make good what else was lost: the leader's newest snapshot may be older than what
    this member had acknowledged.
    """
    if log is not None:
        state.healed = tuple(sorted({*state.healed, *log.unreadable.values()}))
        state.lost = tuple(sorted({*state.lost, *log.lost}))


def _heal(state: GroupState, log: GroupLog | None) -> None:
    """What was lost so far is made good; damage that comes later is another place."""
    damaged = () if log is None else (*log.lost, *log.unreadable.values())
    state.healed = tuple(sorted({*state.healed, *state.lost, *damaged}))
    state.lost = ()


def coalesce(indexes: Sequence[int]) -> list[tuple[int, int]]:
    """Return ascending indexes as [low, high) ranges."""
    ranges: list[tuple[int, int]] = []
    for index in indexes:
        if ranges and ranges[-1][1] == index:
            ranges[-1] = (ranges[-1][0], index + 1)
        else:
            ranges.append((index, index + 1))
    return ranges


def _start_writer(files: SegmentFiles, found: recovery.Recovery) -> LogWriter:
    """Seal what was being written at the end and start a new segment behind it.

    The seal also keeps what follows a torn write from ever being read, and the sync makes durable
    what a killed process had written but not synced, a seal too, before anybody relies on it.
    """
    for segment in sorted([*found.scans, *found.leftovers]):
        files.open_existing(segment)
    unused = [segment for segment in found.scans if found.tail is None or segment > found.tail]
    unused += found.leftovers
    active = files.create(0, found.batches)
    removed, segment_groups = packed(found.removed, found.segment_groups)
    state = WriterState(
        groups={uid: group.state for uid, group in found.groups.items()},
        removed=removed,
        segment_groups=segment_groups,
        lost=found.lost,
        accepted=found.accepted,
        batches=found.batches,
        promises=found.promises,
    )
    suspected_regressions.begin_run(state, files.disk)
    if found.tail is not None:
        scan, descriptor = found.scans[found.tail], files.descriptors[found.tail]
        _write_again(files, descriptor, scan.last_batch_start, scan.end)
        if not scan.sealed:
            old = ActiveSegment(scan.header, descriptor, scan.end, scan.header.size)
            LogWriter(files, WriterState(), old).seal(active.segment)
            files.disk.truncate(descriptor, scan.end + HEADER_BYTES)
            files.sizes[found.tail] = scan.end + HEADER_BYTES
        files.disk.sync(descriptor)
    writer = LogWriter(files, state, active)
    _remember_damage(writer, found, unused)
    if unused:
        files.retire(unused)
    return writer


def _write_again(files: SegmentFiles, descriptor: int, start: int, end: int) -> None:
    """Store the last write once more, unchanged.

    If its sync failed and the process ended for it, the kernel may hold pages that look clean and
    are not on disk: a sync alone would report success for them.
    """
    image = files.disk.read(descriptor, end - start, start)
    files.disk.write(descriptor, image, start)


def _remember_damage(writer: LogWriter, found: recovery.Recovery, unused: Sequence[int]) -> None:
    """Write down which files count and what is damaged, so that the next start knows it too."""
    batch = [writer.segments_record(without=unused), *writer.lost_records()]
    batch.append(writer.promises_record())
    for uid, group in found.groups.items():
        if group.lost:
            batch.append(writer.group_record(uid))
    writer.append(batch)
