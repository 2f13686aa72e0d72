"""The ledger: which files make up the tables, and how that changes all at once.

design/telemetry.md §7.1: a run writes new files only, then a manifest that lists every live file,
and last swaps `ledger/CURRENT` by a rename.  Readers follow CURRENT; a crash before the swap
leaves orphans that `vacuum` removes, nothing else.  Paths in a manifest are relative to the output
directory, so it can be moved.  No Spark here: `table_files` is for programs that only read.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from brokerd_telemetry import delta
from brokerd_telemetry.manifest import LedgerError, Manifest

MANIFESTS_KEPT = 24
ORPHAN_AGE_S = 24 * 3600
#: A holder renews its lease this often; one that was not renewed for LEASE_AGE_S is over. So the
#: job that follows a killed driver's waits for a minute, and no person is needed.
LEASE_RENEW_S = 10.0
LEASE_AGE_S = 60.0
_LEASE_POLL_S = 0.5
#: design/telemetry.md §11.
RAW_DAYS = 7
SILVER_DAYS = 30
GOLD_DAYS = 400
MINUTE_TABLE_DAYS = 30


class Ledger:
    """The ledger of one output directory."""

    def __init__(self, out_dir: Path) -> None:
        self.out_dir = out_dir
        self._dir = out_dir / "ledger"
        #: The files of the manifest that was loaded, which need no second look.
        self._known: set[str] = set()

    @property
    def _current(self) -> Path:
        return self._dir / "CURRENT"

    def load(self) -> Manifest:
        """Return what CURRENT names; an empty one before the first commit."""
        try:
            name = self._current.read_text().strip()
        except FileNotFoundError:
            return Manifest()
        if "/" in name or not name.endswith(".json"):
            raise LedgerError(f"{self._current} does not name a manifest")
        try:
            manifest = Manifest.from_json((self._dir / "manifests" / name).read_bytes())
        except FileNotFoundError as error:
            raise LedgerError(f"CURRENT names {name}, which does not exist") from error
        self._known = manifest.all_paths()
        return manifest

    @property
    def _published(self) -> Path:
        return self._dir / "PUBLISHED"

    def published(self) -> str:
        """Return the last run that published all it had to; empty if there is none."""
        try:
            return self._published.read_text().strip()
        except FileNotFoundError:
            return ""

    def note_published(self, run_id: str) -> None:
        """Say that a run has published all it had to."""
        write_durably(self._published, f"{run_id}\n".encode())

    def added(self, manifest: Manifest) -> list[str]:
        """Return the files of a manifest that were not in the loaded one; LedgerError if one of
        them does not exist.
        """
        paths = sorted(manifest.all_paths() - self._known)
        for path in paths:
            if not (self.out_dir / path).is_file():
                raise LedgerError(f"{path} is to be committed and does not exist")
        return paths

    def commit(self, manifest: Manifest) -> None:
        """Make a manifest the current one, all or nothing."""
        self.added(manifest)
        name = f"{manifest.run_id}.json"
        write_durably(self._dir / "manifests" / name, manifest.to_json())
        write_durably(self._current, f"{name}\n".encode())

    @contextmanager
    def lease(self, run_id: str) -> Iterator[None]:
        """Keep a second driver away from the directory (design/telemetry.md §5.6)."""
        path = self._dir / "lease"
        path.parent.mkdir(parents=True, exist_ok=True)
        self._clear_stale(path)
        holder = {"run_id": run_id, "pid": os.getpid(), "host": socket.gethostname()}
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError as error:
            raise LedgerError(
                f"another run is working in {self.out_dir}: {path.read_text().strip()}. "
                f"If it is dead, delete {path}"
            ) from error
        # What others left: of a run that was killed, or a task of one that has failed; the lease
        # itself may need the room.
        shutil.rmtree(self.out_dir / "work", ignore_errors=True)
        try:
            with os.fdopen(descriptor, "w") as file:
                json.dump(holder, file)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        ended = threading.Event()
        renewal = threading.Thread(target=_renew, args=(path, ended), name="lease", daemon=True)
        renewal.start()
        try:
            yield
        finally:
            ended.set()
            renewal.join()
            path.unlink(missing_ok=True)

    @staticmethod
    def _clear_stale(path: Path) -> None:
        """Remove the lease of a dead run.

        Of a run on this host the process tells; of one elsewhere (another pod) that it does not
        renew, which is waited for.
        """
        first_seen: float | None = None
        while True:
            try:
                renewed = path.stat().st_mtime
                holder = json.loads(path.read_text() or "{}")
            except FileNotFoundError:
                return
            except ValueError:
                holder = {}
            if first_seen is None:
                first_seen = renewed
            pid = holder.get("pid")
            is_here = holder.get("host") == socket.gethostname() and isinstance(pid, int)
            is_dead = is_here and not Path(f"/proc/{pid}").exists()
            if is_dead or time.time() - renewed > LEASE_AGE_S:
                path.unlink(missing_ok=True)
                return
            if is_here or renewed != first_seen:
                return
            time.sleep(_LEASE_POLL_S)

    def forget(self, run_id: str) -> None:
        """Delete what a run wrote that has not committed."""
        shutil.rmtree(self.out_dir / "work", ignore_errors=True)
        try:
            if self.load().run_id == run_id:
                return
        except LedgerError:
            # Which files count is not known.
            return
        for folder in ("silver", "gold", "quarantine"):
            for path in [*(self.out_dir / folder).rglob(f"*={run_id}")]:
                shutil.rmtree(path, ignore_errors=True)

    def vacuum(self) -> int:
        """Delete old files that no recent manifest names; return how many."""
        manifests = sorted(
            (self._dir / "manifests").glob("*.json"), key=lambda path: path.stat().st_mtime_ns
        )
        for path in manifests[:-MANIFESTS_KEPT]:
            path.unlink(missing_ok=True)
        live: set[str] = set()
        for path in manifests[-MANIFESTS_KEPT:]:
            live |= Manifest.from_json(path.read_bytes()).all_paths()
        removed = 0
        oldest_s = time.time() - ORPHAN_AGE_S
        for folder in ("silver", "gold"):
            for path in (self.out_dir / folder).rglob("*"):
                name = path.relative_to(self.out_dir)
                # A log of Delta Lake forgets what is old by itself.
                if not path.is_file() or name.as_posix() in live or delta.LOG in name.parts:
                    continue
                if path.stat().st_mtime < oldest_s:
                    path.unlink(missing_ok=True)
                    removed += 1
        return removed


def _renew(path: Path, ended: threading.Event) -> None:
    """Show that the holder lives, until it says that it ended."""
    while not ended.wait(LEASE_RENEW_S):
        with suppress(FileNotFoundError):
            os.utime(path)


def table_files(out_dir: Path | str, table: str) -> list[Path]:
    """Return the live Parquet files of a table, by CURRENT; empty if there is none (yet)."""
    out_dir = Path(out_dir)
    return [out_dir / path for path in Ledger(out_dir).load().paths(table)]


def write_durably(path: Path, data: bytes) -> None:
    """Replace a file by a rename, so that readers see the old or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
