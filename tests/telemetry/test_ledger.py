"""The ledger: all or nothing, one driver at a time, and what readers see (design/telemetry.md
§7.1).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from brokerd_telemetry import commit
from brokerd_telemetry.commit import Ledger
from brokerd_telemetry.manifest import LedgerError, Manifest

CHILD = """
import sys
from pathlib import Path
from brokerd_telemetry.commit import Ledger
from brokerd_telemetry.manifest import Manifest
out = Path(sys.argv[1])
number = 0
while True:
    number += 1
    file = out / "gold" / "t" / f"{number}.parquet"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"x")
    entry = {"path": f"gold/t/{number}.parquet", "rows": 1, "bytes": 1}
    Ledger(out).commit(Manifest(run_id=f"run-{number}", tables={"t": {"2026-11-20T14": [entry]}}))
    print(number, flush=True)
"""
REPOSITORY = Path(__file__).resolve().parents[2]


def entry(out: Path, name: str) -> dict[str, object]:
    path = out / "gold" / "t" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    return {"path": f"gold/t/{name}", "rows": 1, "bytes": 1}


def test_readers_see_only_what_was_committed(tmp_path: Path) -> None:
    assert commit.table_files(tmp_path, "t") == []
    first = entry(tmp_path, "a.parquet")
    ledger = Ledger(tmp_path)
    ledger.commit(Manifest(run_id="one", tables={"t": {"2026-11-20T14": [first]}}))
    entry(tmp_path, "orphan.parquet")
    assert commit.table_files(str(tmp_path), "t") == [tmp_path / "gold/t/a.parquet"]
    assert commit.table_files(tmp_path, "unknown") == []


def test_the_directory_can_be_moved(tmp_path: Path) -> None:
    old = tmp_path / "old"
    first = entry(old, "a.parquet")
    Ledger(old).commit(Manifest(run_id="one", tables={"t": {"2026-11-20T14": [first]}}))
    old.rename(tmp_path / "new")
    (file,) = commit.table_files(tmp_path / "new", "t")
    assert file.read_bytes() == b"x"


def test_a_manifest_with_a_file_that_is_not_there_is_not_committed(tmp_path: Path) -> None:
    gone = {"path": "gold/t/none.parquet", "rows": 1, "bytes": 1}
    with pytest.raises(LedgerError, match="does not exist"):
        Ledger(tmp_path).commit(Manifest(run_id="x", tables={"t": {"2026-11-20T14": [gone]}}))
    assert Ledger(tmp_path).load().run_id == ""


@pytest.mark.parametrize("data", ["{}", "[]", "no", '{"v": 2}', '{"v": 1, "surprise": 3}'])
def test_a_damaged_manifest_is_a_clear_error(tmp_path: Path, data: str) -> None:
    (tmp_path / "ledger" / "manifests").mkdir(parents=True)
    (tmp_path / "ledger" / "CURRENT").write_text("m.json\n")
    (tmp_path / "ledger" / "manifests" / "m.json").write_text(data)
    with pytest.raises(LedgerError):
        Ledger(tmp_path).load()


def test_current_that_points_outside_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ledger").mkdir()
    (tmp_path / "ledger" / "CURRENT").write_text("../../secret.json")
    with pytest.raises(LedgerError):
        Ledger(tmp_path).load()


def test_two_drivers_cannot_work_at_once(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    with ledger.lease("one"):
        with pytest.raises(LedgerError, match="another run"), Ledger(tmp_path).lease("two"):
            pass
        assert json.loads((tmp_path / "ledger" / "lease").read_text())["run_id"] == "one"
    with ledger.lease("three"):
        pass


def test_the_lease_of_a_dead_process_is_taken_over(tmp_path: Path) -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    (tmp_path / "ledger").mkdir()
    holder = {"run_id": "dead", "pid": child.pid, "host": os.uname().nodename}
    (tmp_path / "ledger" / "lease").write_text(json.dumps(holder))
    with Ledger(tmp_path).lease("new"):
        pass


def test_the_lease_of_a_pod_that_is_gone_is_taken_over_and_of_one_that_lives_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can ask another pod's process: it shows its life by renewing."""
    monkeypatch.setattr(commit, "LEASE_RENEW_S", 0.05)
    monkeypatch.setattr(commit, "LEASE_AGE_S", 2.0)
    path = tmp_path / "ledger" / "lease"
    path.parent.mkdir()
    path.write_text(json.dumps({"run_id": "dead", "pid": 6, "host": "another-pod"}))
    with Ledger(tmp_path).lease("new"):
        assert json.loads(path.read_text())["run_id"] == "new"
        # The same lease, as a process elsewhere sees it.
        monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")
        with pytest.raises(LedgerError, match="another run"), Ledger(tmp_path).lease("second"):
            pass
    assert not path.exists()


def test_replaced_hours_forget_their_old_files(tmp_path: Path) -> None:
    manifest = Manifest(tables={"t": {"2026-11-20T14": [{"path": "a"}], "2026-11-20T15": []}})
    manifest.replace_hours(
        "t", ["2026-11-20T14", "2026-11-20T16"], {"2026-11-20T16": [{"path": "b"}]}
    )
    assert manifest.paths("t") == ["b"]


def test_tables_of_an_earlier_version_are_of_the_one_cluster_that_they_knew() -> None:
    """Files did not say whose they are; those of several clusters cannot be told apart."""
    file = {"path": "silver/x.parquet", "rows": 1, "bytes": 1}
    tables = {"silver": {"2026-11-20T14": [file]}}
    boots = {"b1": {"cluster": "a/b", "node": "n0"}}
    one = Manifest(run_id="r", tables=tables, boots=boots)
    assert Manifest.from_json(one.to_json()).clusters() == ["a/b"]
    two = Manifest(run_id="r", tables=tables, boots={**boots, "b2": {"cluster": "a/c"}})
    with pytest.raises(LedgerError, match="begin anew in an empty directory"):
        Manifest.from_json(two.to_json())


def test_hours_of_some_clusters_are_replaced_and_those_of_others_stay() -> None:
    entries = [{"path": name, "cluster": name} for name in ("a", "b")]
    manifest = Manifest(tables={"t": {"2026-11-20T14": entries}})
    new = {"2026-11-20T14": [{"path": "a2", "cluster": "a"}]}
    manifest.replace_hours("t", ["2026-11-20T14"], new, ["a"])
    assert manifest.paths("t") == ["b", "a2"]
    manifest.replace_hours("t", ["2026-11-20T14"], {}, ["a"])
    assert manifest.paths("t") == manifest.paths("t", None, ["b"]) == ["b"]
    manifest.replace_hours("t", ["2026-11-20T14"], {}, ["b"])
    assert manifest.tables["t"] == {}


def test_vacuum_removes_only_old_orphans(tmp_path: Path) -> None:
    live = entry(tmp_path, "live.parquet")
    entry(tmp_path, "young.parquet")
    entry(tmp_path, "old.parquet")
    Ledger(tmp_path).commit(Manifest(run_id="one", tables={"t": {"2026-11-20T14": [live]}}))
    for name in ("live", "old"):
        os.utime(tmp_path / "gold" / "t" / f"{name}.parquet", (1, 1))
    assert Ledger(tmp_path).vacuum() == 1
    left = sorted(path.stem for path in (tmp_path / "gold" / "t").iterdir())
    assert left == ["live", "young"]


@pytest.mark.slow
def test_sigkill_at_any_moment_leaves_a_whole_ledger(tmp_path: Path) -> None:
    """7.1: whatever moment it is, CURRENT names a manifest whose files all exist."""
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY / "telemetry")}
    for round_number in range(6):
        out = tmp_path / str(round_number)
        with subprocess.Popen(
            [sys.executable, "-c", CHILD, str(out)], env=env, stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout is not None
            done = [int(child.stdout.readline()) for _ in range(1 + 7 * round_number)]
            child.send_signal(signal.SIGKILL)
        manifest = Ledger(out).load()
        assert int(manifest.run_id.removeprefix("run-")) >= done[-1]
        (file,) = commit.table_files(out, "t")
        assert file.is_file()
