"""Tables in object storage: the run works on its disk, and the store decides what counts (ADR 38).

The store has the layout of an output directory.  A run begins with the store's CURRENT, brings the
old files that it needs to its disk, puts its new files there, then the manifest, and last swaps
CURRENT on the condition that it is still the one that it began with.  So of two runs one wins, a
crash leaves the old tables, and the disk may be lost between runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from brokerd_telemetry import objects
from brokerd_telemetry.commit import MANIFESTS_KEPT, write_durably
from brokerd_telemetry.manifest import LedgerError, Manifest

if TYPE_CHECKING:
    from pathlib import Path

CURRENT = "ledger/CURRENT"
PUBLISHED = "ledger/PUBLISHED"
MANIFESTS = "ledger/manifests/"


class Store:
    """The tables of one place, during one run."""

    def __init__(self, place: objects.Place, out_dir: Path, say: Callable[[str], None]) -> None:
        self.place = place
        self.out_dir = out_dir
        self._say = say
        self._version: str | None = None

    def begin(self) -> None:
        """Let the disk's ledger be the store's; one that the store does not know is forgotten."""
        found = self.place.get(CURRENT)
        local = self.out_dir / CURRENT
        if found is None:
            if local.exists():
                self._say(f"{self.place.url} is empty: it gets the tables of {self.out_dir}")
            return
        name, self._version = found[0].decode().strip(), found[1]
        if "/" in name or not name.endswith(".json"):
            raise LedgerError(f"{CURRENT} in {self.place.url} does not name a manifest")
        if not (self.out_dir / MANIFESTS / name).exists():
            manifest = self.place.get(MANIFESTS + name)
            if manifest is None:
                raise LedgerError(f"{self.place.url} has lost {MANIFESTS}{name}")
            write_durably(self.out_dir / MANIFESTS / name, manifest[0])
        with suppress(FileNotFoundError):
            if local.read_text().strip() == name:
                return
        write_durably(local, found[0])

    def fetch(self, paths: Iterable[str]) -> None:
        """Bring files to the disk that are not there."""

        def bring(path: str) -> None:
            found = self.place.get(path)
            if found is None:
                raise LedgerError(f"{self.place.url} has lost {path}")
            write_durably(self.out_dir / path, found[0])

        objects.together(bring, [path for path in paths if not (self.out_dir / path).exists()])

    def commit(self, manifest: Manifest, added: list[str]) -> None:
        """Make a manifest the store's current one; added: its files that may not be there yet."""
        if self._version is None:
            # All that the disk has, if it has worked without a store before.
            added = sorted(manifest.all_paths())
        objects.together(self._put, added)
        self.place.put(f"{MANIFESTS}{manifest.run_id}.json", manifest.to_json())
        try:
            self.place.swap(CURRENT, f"{manifest.run_id}.json\n".encode(), self._version)
        except objects.Conflict as error:
            raise LedgerError(
                f"another run has changed {self.place.url} meanwhile; what this one has made does "
                "not count. Let one job write there, and run it again"
            ) from error

    def _put(self, path: str) -> None:
        self.place.put(path, (self.out_dir / path).read_bytes())

    def publish(self, files: Mapping[str, bytes]) -> None:
        """Put what people and programs read beside the tables."""
        objects.together(lambda name: self.place.put(f"publish/{name}", files[name]), list(files))

    def published(self) -> str:
        """Return the last run that published all it had to; empty if there is none."""
        found = self.place.get(PUBLISHED)
        return "" if found is None else found[0].decode().strip()

    def note_published(self, run_id: str) -> None:
        """Say that a run has published all it had to."""
        self.place.put(PUBLISHED, f"{run_id}\n".encode())

    def vacuum(self) -> int:
        """Delete what only manifests named that are too old to be kept; return how many files."""
        names = [entry.name for entry in self.place.entries(MANIFESTS)]
        old, kept = names[:-MANIFESTS_KEPT], names[-MANIFESTS_KEPT:]
        if not old:
            return 0
        # A file that one manifest left out is in no later one: runs never use a name twice.
        live = self._paths_of(kept[0])
        for name in old:
            gone = self._paths_of(name) - live
            self.place.delete(gone)
            self.place.delete([name])
        return len(old)

    def _paths_of(self, name: str) -> set[str]:
        found = self.place.get(name)
        return set() if found is None else Manifest.from_json(found[0]).all_paths()
