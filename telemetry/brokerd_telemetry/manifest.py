"""The manifest: which files make up the tables at one time.

Made anew by each run and kept by the ledger (commit.py); readers of tables go by it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


class LedgerError(Exception):
    """The output directory cannot be used."""


@dataclass(slots=True)
class Manifest:
    """All live files.  Invariant once committed: every listed file exists with these rows."""

    run_id: str = ""
    parent: str = ""
    cluster: str = ""
    #: Ingested segments by identity `boot.stream.seg`: {path, sha256, seq0, seq1, rows, hour, …}.
    segments: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: Table name -> hour -> files: {path, rows, bytes, cluster}.  Silver is the table "silver"; a
    #: file holds rows of one cluster.
    tables: dict[str, dict[str, list[dict[str, Any]]]] = field(default_factory=dict)
    #: Boots of members: {node, first_us, last_us, has_ended, interval_us}.
    boots: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: What this run did, for the report and for people.
    run: dict[str, Any] = field(default_factory=dict)

    def as_of_us(self, clusters: Collection[str] | None = None) -> int:
        """Return the end of what members (of these clusters) had told; 0 if they never did."""
        return max(
            (
                boot["last_us"]
                for boot in self.boots.values()
                if clusters is None or boot["cluster"] in clusters
            ),
            default=0,
        )

    def clusters(self, table: str = "silver") -> list[str]:
        """Return the clusters that a table has files of."""
        hours = self.tables.get(table, {}).values()
        return sorted({item["cluster"] for items in hours for item in items})

    def to_json(self) -> bytes:
        """Return it as it is stored."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return json.dumps({"v": 1, **fields}, indent=1, sort_keys=True).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Manifest:
        """Read it back; LedgerError if it is none."""
        try:
            fields = json.loads(data)
            if fields.pop("v") != 1:
                raise LedgerError("the ledger is of a newer version")
            manifest = cls(**fields)
            manifest._name_clusters()
            return manifest
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise LedgerError(f"a manifest is damaged: {error}") from error

    def _name_clusters(self) -> None:
        """Say of the files of an earlier version, which did not, whose they are."""
        clusters = {boot["cluster"] for boot in self.boots.values()}
        for table in self.tables.values():
            for item in (item for items in table.values() for item in items):
                if "cluster" not in item and len(clusters) > 1:
                    raise LedgerError(
                        "these tables are of an earlier version, which mixed clusters in one file: "
                        "let the job begin anew in an empty directory"
                    )
                item.setdefault("cluster", next(iter(clusters), ""))

    def replace_hours(
        self,
        table: str,
        hours: Collection[str],
        files: Mapping[str, list[dict[str, Any]]],
        clusters: Collection[str] | None = None,
    ) -> None:
        """Let these hours of a table consist of these files, and of nothing else.

        clusters: only what is theirs; None: of all.
        """
        entries = dict(self.tables.get(table, {}))
        for hour in hours:
            others = [
                item
                for item in entries.pop(hour, [])
                if clusters is not None and item["cluster"] not in clusters
            ]
            if others or files.get(hour):
                entries[hour] = others + list(files.get(hour, ()))
        self.tables[table] = entries

    def hours(self, table: str, clusters: Collection[str] | None = None) -> list[str]:
        """Return the hours in which a table has files (of these clusters), in order."""
        return [hour for hour, _ in self._items(table, None, clusters)]

    def paths(
        self,
        table: str,
        hours: Collection[str] | None = None,
        clusters: Collection[str] | None = None,
    ) -> list[str]:
        """Return a table's relative paths, of all or of some hours, in order of the hours."""
        return [item["path"] for item in self.entries(table, hours, clusters)]

    def entries(
        self,
        table: str,
        hours: Collection[str] | None = None,
        clusters: Collection[str] | None = None,
    ) -> list[dict[str, Any]]:
        """Return what is known of a table's files: path, rows, bytes, cluster."""
        return [item for _, items in self._items(table, hours, clusters) for item in items]

    def _items(
        self, table: str, hours: Collection[str] | None, clusters: Collection[str] | None
    ) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        entries = self.tables.get(table, {})
        for hour in sorted(entries if hours is None else set(hours) & set(entries)):
            items = [
                item for item in entries[hour] if clusters is None or item["cluster"] in clusters
            ]
            if items:
                yield hour, items

    def all_paths(self) -> set[str]:
        """Return the paths of all live files."""
        return {path for table in self.tables for path in self.paths(table)}
