"""`--delta`: logs of Delta Lake name the live files of tables, and no others, whatever happened."""

from __future__ import annotations

import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow
import pyarrow.parquet
import pytest
from brokerd_telemetry import delta, sinks
from brokerd_telemetry.commands import telemetry
from brokerd_telemetry.commit import Ledger
from brokerd_telemetry.manifest import Manifest
from brokerd_telemetry.objects import Place
from click.testing import CliRunner
from deltalake import DeltaTable

from brokerd import extras
from tests.telemetry import fleet
from tests.telemetry.object_server import BUCKET, ObjectServer, object_server
from tests.telemetry.test_job import run_command

__all__ = ["object_server"]

#: Names that paths, URLs and logs each write in their own way.
CLUSTERS = ("mq/prod-eu", "a~b/ü 50%")
HOURS = ("2026-11-20T03", "2026-11-20T04")


class Tables:
    """Tables as a job writes them, of a few rows."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.manifest = Manifest()
        self.runs = 0

    def live(self) -> sinks.Live:
        return sinks.Live(self.out, self.manifest)

    def write(self, table: str, cluster: str, hour: str, **columns: list[Any]) -> None:
        """Replace the rows of a cluster's hour, as a run of its own."""
        self.runs += 1
        day, of_day = hour.split("T")
        path = (
            f"gold/{table}/cluster_of={sinks.encoded(cluster)}/dt={day}/hh={of_day}/"
            f"v=20261120T0500{self.runs:02}-abcdef01/part-00000.parquet"
        )
        rows = pyarrow.table({"cluster": [cluster] * len(columns["n"]), **columns})
        (self.out / path).parent.mkdir(parents=True)
        pyarrow.parquet.write_table(rows, self.out / path)
        entry = {
            "path": path, "rows": len(rows), "bytes": (self.out / path).stat().st_size,
            "cluster": cluster,
        }  # fmt: skip
        self.forget(table, cluster, hour)
        self.manifest.tables.setdefault(table, {}).setdefault(hour, []).append(entry)

    def forget(self, table: str, cluster: str, hour: str) -> None:
        """Let the rows of a cluster's hour count no more."""
        hours = self.manifest.tables.get(table, {})
        hours[hour] = [item for item in hours.get(hour, []) if item["cluster"] != cluster]

    def bring(self) -> list[str]:
        """Bring the logs up to date; return which changed."""
        return delta.bring_up_to_date(str(self.out), self.live(), dict)


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    """One table of two clusters and hours, in a directory that is written so and so in URLs."""
    made = Tables(tmp_path / "ü ? # out")
    for number, cluster in enumerate(CLUSTERS):
        for at, hour in enumerate(HOURS):
            made.write("audit_1h", cluster, hour, n=[10 * number + at])
    return made


def read(out: Path, table: str = "audit_1h", version: int | None = None) -> list[dict[str, Any]]:
    """Return rows as readers of Delta Lake see them."""
    rows: list[dict[str, Any]] = (
        DeltaTable((out / "gold" / table).as_uri(), version).to_pyarrow_table().to_pylist()
    )
    return sorted(rows, key=lambda row: row["n"])


def row(cluster: str, hour: str, n: int, **more: Any) -> dict[str, Any]:
    day, of_day = hour.split("T")
    return {"cluster": cluster, "n": n, **more, "cluster_of": cluster, "dt": day, "hh": of_day}


FIRST = [
    row(cluster, hour, 10 * number + at)
    for number, cluster in enumerate(CLUSTERS)
    for at, hour in enumerate(HOURS)
]


def test_a_log_names_what_counts_and_each_run_is_one_version(tables: Tables) -> None:
    assert tables.bring() == ["audit_1h"]
    assert read(tables.out) == FIRST
    assert tables.bring() == []

    tables.write("audit_1h", CLUSTERS[1], HOURS[1], n=[50, 51])
    tables.forget("audit_1h", CLUSTERS[0], HOURS[0])
    tables.write("usage_1h", CLUSTERS[0], HOURS[0], n=[1])
    assert tables.bring() == ["audit_1h", "usage_1h"]
    second = [FIRST[1], FIRST[2], *(row(CLUSTERS[1], HOURS[1], n) for n in (50, 51))]
    assert read(tables.out) == second
    assert read(tables.out, version=0) == FIRST
    assert read(tables.out, "usage_1h") == [row(CLUSTERS[0], HOURS[0], 1)]
    assert tables.bring() == []

    log = DeltaTable((tables.out / "gold" / "audit_1h").as_uri())
    assert log.version() == 1
    stats = log.get_add_actions(flatten=True)
    assert sorted(stats["num_records"].to_pylist()) == [1, 1, 2]
    assert set(stats["partition.cluster_of"].to_pylist()) == set(CLUSTERS)
    began = datetime(2026, 11, 20, 5, 0, 5, tzinfo=UTC).timestamp() * 1000
    assert max(stats["modification_time"].to_pylist()) == began

    for cluster in CLUSTERS:
        for hour in HOURS:
            tables.forget("audit_1h", cluster, hour)
    assert tables.bring() == ["audit_1h"]
    assert read(tables.out) == []
    assert tables.bring() == []


def test_a_column_that_is_new_is_null_in_older_rows(tables: Tables) -> None:
    tables.bring()
    tables.write("audit_1h", CLUSTERS[0], HOURS[0], n=[70], share=[0.5])
    assert tables.bring() == ["audit_1h"]
    (*older, newest) = read(tables.out)
    assert newest == row(CLUSTERS[0], HOURS[0], 70, share=0.5)
    assert [line["share"] for line in older] == [None] * 3
    assert tables.bring() == []


def test_tables_may_be_moved(tables: Tables, tmp_path: Path) -> None:
    tables.bring()
    moved = tmp_path / "elsewhere"
    shutil.move(tables.out, moved)
    assert read(moved) == FIRST
    tables.out = moved
    assert tables.bring() == []


def test_old_files_of_the_disk_go_and_the_log_stays(tables: Tables) -> None:
    ledger = Ledger(tables.out)
    tables.bring()
    tables.write("audit_1h", CLUSTERS[0], HOURS[0], n=[70])
    tables.manifest.run_id = "r"
    ledger.commit(tables.manifest)
    tables.bring()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("brokerd_telemetry.commit.ORPHAN_AGE_S", -60)
        assert ledger.vacuum() == 1
    assert [line["n"] for line in read(tables.out)] == [1, 10, 11, 70]


def test_a_log_that_cannot_be_written_is_told(tables: Tables) -> None:
    (tables.out / "gold" / "audit_1h" / "_delta_log").write_text("a file")
    with pytest.raises(delta.DeltaUnavailable, match="the Delta log of audit_1h cannot be written"):
        tables.bring()


def test_tables_of_a_bucket_have_their_logs_there(
    tables: Tables, object_server: ObjectServer
) -> None:
    place = Place(f"s3://{BUCKET}/some where")
    for path in tables.manifest.all_paths():
        place.put(path, (tables.out / path).read_bytes())
    for expected in (["audit_1h"], []):
        found = delta.bring_up_to_date(place.url, tables.live(), place.storage_options)
        assert found == expected
    log = DeltaTable(f"{place.url}/gold/audit_1h", storage_options=place.storage_options())
    rows = log.to_pyarrow_table().to_pylist()
    assert sorted(rows, key=lambda line: line["n"]) == FIRST
    assert not (tables.out / "gold" / "audit_1h" / "_delta_log").exists()


def test_without_the_package_nothing_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    arguments = ["run", "--raw", str(tmp_path), "--out", str(tmp_path / "out"), "--delta"]
    done = CliRunner().invoke(telemetry, arguments)
    assert done.exit_code == 1
    assert extras.how_to_install("delta") in done.output
    assert not (tmp_path / "out").exists()


def test_trino_is_told_where_tables_are(tables: Tables) -> None:
    tables.manifest.tables["silver"] = {HOURS[0]: [{"path": "silver/x", "cluster": "a"}]}
    tables.manifest.tables["empty"] = {}
    reported = delta.trino_sql("/it's here", tables.live()).decode().splitlines()
    assert [line for line in reported if not line.startswith("--")] == [
        "CREATE SCHEMA IF NOT EXISTS brokerd WITH (location = 'file:///it''s here/gold');",
        "CALL system.register_table('brokerd', 'audit_1h', 'file:///it''s here/gold/audit_1h');",
    ]
    assert b"'s3://b/p/gold/audit_1h'" in delta.trino_sql("s3://b/p", tables.live())


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_keeps_the_logs_of_all_its_tables(tmp_path: Path) -> None:
    raw, out = tmp_path / "raw", tmp_path / "out"
    fleet.make(raw, 11)
    arguments = ["run", "--raw", str(raw), "--out", str(out)]
    run_command(*arguments)
    # Asked for later, with nothing new to read; the first time something is in the way.
    wrong = out / "gold" / "audit_1h" / delta.LOG
    wrong.write_text("a file")
    failed = CliRunner().invoke(telemetry, [*arguments, "--delta"])
    assert failed.exit_code == 1
    assert "the Delta log of audit_1h cannot be written" in failed.output
    wrong.unlink()
    assert "no new telemetry" in run_command(*arguments, "--delta")
    found = {path.parent.name for path in (out / "gold").glob("*/_delta_log")}
    live = set(Ledger(out).load().tables) - {"silver"}
    assert {"audit_1h", "queue_1h", "queue_1m", "findings", "data_quality_1h"} <= found <= live
    with duckdb.connect() as db:
        db.execute((out / "publish" / "views.sql").read_text())
        for table in sorted(found):
            log = DeltaTable(str(out / "gold" / table))
            rows = log.to_pyarrow_table().drop_columns(delta.PARTITIONS)
            db.register("delta", rows)
            # Both ways, as rows of a bag: lists and structs compare in DuckDB.
            for left, right in ((table, "delta"), ("delta", table)):
                differ = f"SELECT count(*) FROM (SELECT * FROM {left} EXCEPT ALL FROM {right})"
                assert db.execute(differ).fetchall() == [(0,)], table
            assert log.get_add_actions(flatten=True).num_rows == len(log.file_uris())
            db.unregister("delta")
    live = sinks.Live(out, Ledger(out).load())
    assert delta.bring_up_to_date(str(out), live, dict) == []
    moved = tmp_path / "moved"
    shutil.move(out, moved)
    for place, anew in ((out, False), (moved, True)):
        if anew:
            run_command("report", "--out", str(moved))
        reported = (moved / "publish" / "trino.sql").read_text()
        assert f"'brokerd', 'queue_1h', 'file://{place}/gold/queue_1h'" in reported
