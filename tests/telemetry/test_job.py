"""The Spark job on a made-up fleet: equal to the truth, to DuckDB, and to itself after a kill."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet
import pytest
from brokerd_telemetry import commit
from prometheus_client.parser import text_string_to_metric_families

from tests.telemetry import fleet, odd_segments
from tests.telemetry.oracle import Oracle

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

REPOSITORY = Path(__file__).resolve().parents[2]
SEED = 4711


def command(raw: Path, out: Path) -> list[str]:
    """Return the command line of a run."""
    job = [sys.executable, "-m", "brokerd_telemetry", "run"]
    return [*job, "--raw", str(raw), "--out", str(out)]


def environment() -> dict[str, str]:
    """Return an environment in which the packages are found."""
    paths = [str(REPOSITORY / part) for part in ("telemetry", "operator", ".")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def run(raw: Path, out: Path) -> str:
    """Run the job to its end; return what it said."""
    return run_command("run", "--raw", str(raw), "--out", str(out))


def run_command(*arguments: str) -> str:
    """Run one of the commands to its end; return what it said."""
    done = subprocess.run(
        [sys.executable, "-m", "brokerd_telemetry", *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def query(out: Path, sql: str) -> list[tuple[Any, ...]]:
    """Ask the tables, through the views that the run published."""
    with duckdb.connect() as db:
        db.execute((out / "publish" / "views.sql").read_text())
        return sorted(db.execute(sql).fetchall(), key=str)


def close(left: list[tuple[Any, ...]], right: list[tuple[Any, ...]]) -> bool:
    """Compare rows: exactly, floats within 1e-9."""
    return len(left) == len(right) and all(
        a == pytest.approx(b, rel=1e-9) if isinstance(b, float) else a == b
        for one, other in zip(left, right, strict=True)
        for a, b in zip(one, other, strict=True)
    )


@dataclass
class Done:
    """A finished run."""

    raw: Path
    out: Path
    said: str
    truth: fleet.Truth


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Done]:
    """One run over a sound fleet, a cheating one, and segments with every kind of damage."""
    raw = tmp_path_factory.mktemp("raw")
    out = tmp_path_factory.mktemp("out")
    truth = fleet.make(raw, SEED)
    odd_segments.cheat(raw)
    odd_segments.damage(raw)
    odd_segments.golden(raw)
    odd_segments.large(raw)
    said = run(raw, out)
    yield Done(raw, out, said, truth)
    shutil.rmtree(out)


def test_odd_rows_of_one_cluster_stop_no_run(done: Done) -> None:
    where = "WHERE cluster = 'test/cheat'"
    policies = "SELECT policy, state, matched, object_kind, objects FROM policy_coverage_1h"
    assert query(done.out, f"{policies} {where}") == [
        ("odd", "unknown", 1 << 62, None, None),
        (None, None, None, "quorum", 1),
    ]
    exchanges = "SELECT exchange, is_unbound, idle_in_s FROM idle_exchanges_1h"
    assert query(done.out, f"{exchanges} {where}") == [("odd", True, None)]
    assert query(done.out, f"SELECT fp, n, tries_max FROM poison_1h {where}") == [("f", None, 2)]


def test_numbers_without_sense_of_one_cluster_stop_no_run(tmp_path: Path) -> None:
    """They wrap around or are left out, in its own tables; another's are right."""
    odd_segments.golden(tmp_path / "raw")
    odd_segments.greedy(tmp_path / "raw")
    run(tmp_path / "raw", tmp_path / "out")
    enqueued = "SELECT cluster, enq FROM queue_1h WHERE queue IN ('orders', 'x')"
    sound, (greedy, _) = query(tmp_path / "out", enqueued)
    assert (sound, greedy) == (("mq/prod-eu", 912), "test/greedy")


def test_what_a_large_queue_holds_is_billed(done: Done) -> None:
    """A gigabyte for three hours, or as much of more and longer, is beyond a 64-bit number of
    octets times microseconds.
    """
    seconds = 2 * fleet.INTERVAL_US / 1e6
    where = "WHERE cluster = 'test/large'"
    stored = f"SELECT gb_hours_stored FROM chargeback_1d {where} AND vhost = '/' AND user = ''"
    assert close(query(done.out, stored), [(odd_segments.LARGE * 100 / 1e9 * seconds / 3600,)])
    levels = f"SELECT queue, ready_avg, bytes_avg FROM queue_1h {where}"
    expected = ("large", float(odd_segments.LARGE), odd_segments.LARGE * 100.0)
    assert close(query(done.out, levels), [expected])


def test_the_totals_are_the_truth_although_a_leader_was_killed(done: Done) -> None:
    sums = query(
        done.out,
        "SELECT queue, sum(enq), sum(ack), sum(over_limit), sum(dl_out), sum(dl_confirmed) "
        "FROM queue_1h WHERE cluster = 'test/fleet' GROUP BY queue",
    )
    assert sums == [
        (q.name, *(q.counters[n] for n in ("enq", "ack", "over_limit", "dl_out", "dl_confirmed")))
        for q in done.truth.queues
    ]


def test_what_the_default_delivery_limit_drops_is_found_with_advice(done: Done) -> None:
    """Each queue without a dead letter exchange, its messages and what to do about it."""
    lost = {q.name: q.counters["default_limit_drop"] for q in done.truth.queues}
    sums = query(
        done.out,
        "SELECT queue, sum(default_limit_drop) FROM queue_1h "
        "WHERE cluster = 'test/fleet' GROUP BY queue",
    )
    assert sums == sorted(lost.items())
    found = query(
        done.out,
        "SELECT DISTINCT object, severity, status, action FROM findings "
        "WHERE cluster = 'test/fleet' AND rule = 'LIMIT-DROP'",
    )
    advice = (
        "name a dead letter exchange, or set a delivery-limit (-1: none) by argument, policy or "
        "resource"
    )
    assert any(lost.values())
    assert found == [
        (name, "critical", "RAISED", advice) for name, count in sorted(lost.items()) if count
    ]


def test_the_books_of_a_sound_cluster_balance(done: Done) -> None:
    rows = query(
        done.out,
        "SELECT equation, count(*), sum(abs(residual)) FROM audit_1h "
        "WHERE cluster = 'test/fleet' AND judged GROUP BY equation",
    )
    assert rows == [("exchange", 3, 0), ("letters", 2, 0), ("queue", 10, 0)]


def test_published_metrics_please_promtool(done: Done) -> None:
    """Names, types and help texts; the figures are the run's."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    text = (done.out / "publish" / "metrics.prom").read_bytes()
    checked = subprocess.run(
        [promtool, "check", "metrics"], input=text, capture_output=True, timeout=60
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")
    found = {
        sample.name: sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if not sample.labels
    }
    assert found["broker_tele_rows_quarantined"] == 5
    assert found["broker_tele_segments_quarantined"] == 2
    assert found["broker_tele_audit_residual"] == 0
    labelled = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if sample.labels
    }
    sums = query(
        done.out,
        "SELECT cluster, kind, sum(delivered), sum(routed), sum(unknown) FROM fates_1h "
        "WHERE window_start = (SELECT max(window_start) FROM fates_1h) GROUP BY ALL",
    )
    name = "broker_tele_fate_messages"
    for cluster, kind, *counts in sums:
        for fate, count in zip(("delivered", "routed", "unknown"), counts, strict=True):
            assert labelled.get((name, *sorted((cluster, kind, fate))), 0) == count
    assert labelled["broker_tele_completeness_ratio", "test/fleet"] == 1.0


def test_the_report_begins_with_what_clients_published(done: Done) -> None:
    page = (done.out / "publish" / "report.html").read_text()
    (published,) = query(done.out, 'SELECT sum("in")::BIGINT FROM usage_1h')
    # A member was killed: what it had counted last is not known.
    assert f"Clients published at least {published[0]:,} messages" in page


def test_a_run_says_where_its_time_went(done: Done) -> None:
    steps = commit.Ledger(done.out).load().run["steps"]
    assert set(steps) == {"pull and verify", "Spark's start", "rows", "tables"}
    assert "of that pull and verify" in done.said


def test_an_injected_miscount_is_found_and_told(done: Done) -> None:
    rows = query(
        done.out,
        "SELECT equation, object, residual FROM audit_1h "
        "WHERE cluster = 'test/cheat' AND residual <> 0",
    )
    assert rows == [("queue", "cheated", 1)]
    rules = query(
        done.out, "SELECT DISTINCT rule, status, object FROM findings WHERE rule = 'BOOKS'"
    )
    assert rules == [("BOOKS", "RAISED", "cheated")]


def test_the_hour_of_a_kill_is_not_complete_and_only_that(done: Done) -> None:
    rows = query(
        done.out,
        "SELECT hour(window_start), node, min(completeness) FROM data_quality_1h "
        "WHERE cluster = 'test/fleet' GROUP BY ALL",
    )
    incomplete = [(hour, node) for hour, node, share in rows if share < 1.0]
    assert incomplete == [(14, "n0")]


def test_hours_and_exchanges_equal_the_oracle(done: Done) -> None:
    oracle = Oracle(done.raw, "test/fleet")
    mine = query(
        done.out,
        "SELECT epoch_us(window_start), queue, enq, dlv, ack, rejected, over_limit, dl_out, "
        "dl_confirmed, ready_last, ready_max FROM queue_1h WHERE cluster = 'test/fleet'",
    )
    assert mine == oracle.queue_hours()
    mine = query(
        done.out,
        "SELECT epoch_us(window_start), exchange, unroutable_ratio, ae_catch_ratio "
        "FROM unroutable_1h WHERE cluster = 'test/fleet' AND outcome = 'all'",
    )
    assert close(mine, oracle.exchange_hours())


def test_percentiles_and_usage_equal_the_oracle(done: Done) -> None:
    oracle = Oracle(done.raw, "test/fleet")
    mine = query(
        done.out,
        'SELECT epoch_us(window_start), exchange, "user", n, p50_us, p99_us, max_us '
        "FROM confirm_1h WHERE cluster = 'test/fleet'",
    )
    assert close(mine, oracle.confirm_hours())
    mine = query(
        done.out,
        'SELECT epoch_us(window_start), "user", "in", in_bytes, confirmed FROM usage_1h '
        "WHERE cluster = 'test/fleet' AND \"user\" <> ''",
    )
    assert mine == oracle.usage_hours()
    billed = query(
        done.out,
        "SELECT sum(\"in\"), sum(copies) FROM chargeback_1d WHERE cluster = 'test/fleet'",
    )
    assert billed[0][0] == done.truth.published


def test_leaders_and_settings_equal_the_oracle(done: Done) -> None:
    oracle = Oracle(done.raw, "test/fleet")
    mine = query(
        done.out,
        "SELECT epoch_us(window_start), node, leaders, load_bytes, count_ratio, load_ratio "
        "FROM leader_balance_1h WHERE cluster = 'test/fleet'",
    )
    assert len(mine) == 6
    assert close(mine, oracle.leaders())
    mine = query(
        done.out,
        "SELECT epoch_us(window_start), vhost, queues, with_dlx, with_limit, quorum "
        "FROM settings_coverage_1h WHERE cluster = 'test/fleet'",
    )
    assert mine == oracle.settings()
    assert [row[2:] for row in mine] == [(5, 3, 1, 5)] * 2


def test_what_policies_hold_for_equals_the_oracle(done: Done) -> None:
    """8.14.  The clusters without rows of these kinds, as of older members, have none."""
    oracle = Oracle(done.raw, "test/fleet")
    mine = query(
        done.out,
        "SELECT epoch_us(window_start), policy_kind, policy, state, matched, won, "
        "coalesce(list_sum(list_transform(overridden, lambda each: each.value)), 0)::BIGINT, "
        "lost_to FROM policy_coverage_1h WHERE policy IS NOT NULL AND cluster = 'test/fleet'",
    )
    assert mine == oracle.policies()
    hour_us = fleet.BEGIN_US + fleet.HOUR_US
    assert [row[1:] for row in mine if row[0] == hour_us] == [
        ("operator_policy", "cap", "wins", 1, 1, 0, None),
        ("policy", "all", "wins", 5, 5, 1, None),
        ("policy", "late", "shadowed", 1, 0, 0, "all"),
        ("policy", "low", "shadowed", 2, 0, 0, "all"),
        ("policy", "nothing", "matches_nothing", 0, 0, 0, None),
    ]
    mine = query(
        done.out,
        "SELECT epoch_us(window_start), vhost, sum(objects)::BIGINT, sum(without_policy)::BIGINT "
        "FROM policy_coverage_1h WHERE policy IS NULL AND cluster = 'test/fleet' GROUP BY ALL",
    )
    assert mine == oracle.without_policy()
    assert mine[-1][2:] == (13, 8)
    pending = query(
        done.out,
        "SELECT DISTINCT object, status FROM findings WHERE rule = 'POLICY-UNUSED'",
    )
    assert pending == [(name, "PENDING") for name in ("late", "low", "nothing")]


def test_exchanges_of_no_use_equal_the_oracle(done: Done) -> None:
    """8.13: silent ones are known by what is declared; what is deleted is not idle."""
    mine = query(
        done.out,
        "SELECT epoch_us(window_start), exchange, bindings, is_unbound, idle_in_s "
        "FROM idle_exchanges_1h WHERE cluster = 'test/fleet'",
    )
    assert close(mine, Oracle(done.raw, "test/fleet").idle_exchanges())
    step_s = fleet.HOUR_US / 8e6
    assert [row[1:] for row in mine if row[0] > fleet.BEGIN_US] == [
        ("caught", 0, False, 7200.0),
        ("early", 1, False, 7200 - step_s),
        ("inner", 0, True, None),
        ("quiet", 2, False, 7200.0),
        ("unbound", 0, True, 7200.0),
    ]


def test_messages_that_were_given_up_equal_the_oracle(done: Done) -> None:
    """8.5.  Those beyond the bound of a minute have no fingerprint, and are counted."""
    mine = query(
        done.out,
        "SELECT epoch_us(window_start), queue, fp, ended, n::BIGINT, tries_max, "
        "redeliveries::BIGINT FROM poison_1h WHERE cluster = 'test/fleet'",
    )
    assert mine == Oracle(done.raw, "test/fleet").poison()
    first = [row for row in mine if row[0] == fleet.BEGIN_US]
    # Steps 0 to 7: 2, 3 and 4 messages in turns, of one kind and of a kind each.
    assert sorted(row[4] for row in first if row[1:4:2] == ("q1", "dlx_missing")) == [2, 5, 8, 8]
    (often,) = [row for row in first if row[1:4:2] == ("q1", "routed")]
    assert often[4:6] == (23, 11)
    assert {(row[2] is None, row[4]) for row in first if row[1] == "q2"} == {
        (True, 400), (False, 400),
    }  # fmt: skip


def test_consumers_equal_the_oracle(done: Done) -> None:
    oracle = Oracle(done.raw, "test/fleet")
    mine = query(
        done.out,
        "SELECT epoch_us(window_start), vhost || ' ' || queue, consumed_s, waiting_s, "
        "consumer_capacity, rate_each, consumers_needed FROM consumer_use_1h "
        "WHERE cluster = 'test/fleet'",
    )
    assert len(mine) == 10
    assert any(row[-1] for row in mine)
    assert close(mine, oracle.consumers())


def test_capacity_and_blocked_clients_equal_the_oracle(done: Done) -> None:
    oracle = Oracle(done.raw, "test/fleet")
    mine = query(
        done.out,
        "SELECT node, days, memory_p95, memory_peak, memory_lower, memory_target, memory_growth, "
        "disk_days_left, verdict FROM capacity_1d WHERE cluster = 'test/fleet'",
    )
    assert [row[0] for row in mine] == ["n0", "n1", "n2"]
    assert close(mine, oracle.capacity())
    mine = query(
        done.out,
        'SELECT epoch_us(window_start), "user", cause, times, conns, blocked_s, longest_s, '
        "spans[1].blocked_ms FROM blocked_1h WHERE cluster = 'test/fleet'",
    )
    assert mine
    assert close(mine, oracle.blocked())


def test_dead_letters_are_counted_by_reason(done: Done) -> None:
    rows = query(
        done.out,
        "SELECT queue, sum(n) FROM deadletter_1h WHERE cluster = 'test/fleet' GROUP BY queue",
    )
    assert rows == [
        (q.name, q.counters["rejected"] + q.counters["over_limit"]) for q in done.truth.queues
    ]


def test_the_numbers_of_annex_a(done: Done) -> None:
    """c_in - c_out = depth; 912 + 31 + 5 + 2 = 950; sum of hops = ae_routed; p50 and p99."""
    where = "WHERE cluster = 'mq/prod-eu'"
    queue = query(done.out, f"SELECT enq, gone, ready_last + unacked_last FROM queue_1h {where}")
    assert queue == [(912, 633, 1900)]
    books = query(done.out, f"SELECT equation, counted, residual FROM audit_1h {where} AND judged")
    # All of it is close to where the telling began and ended: copies are on their way.
    assert books == [
        *(("copies", 912, 0), ("exchange", 950, 0), ("letters", 5, 0), ("queue", 1900, 0)),
    ]
    columns = "hops_1 + hops_2, ae_routed, unroutable_ratio, ae_catch_ratio"
    ((hops, routed, unroutable, caught),) = query(
        done.out, f"SELECT {columns} FROM unroutable_1h {where} AND outcome = 'all'"
    )
    assert hops == routed == 31
    assert unroutable == pytest.approx(7 / 950)
    assert caught == pytest.approx(31 / 38)
    ((n, p50, p99, highest),) = query(
        done.out, f"SELECT n, p50_us, p99_us, max_us FROM confirm_1h {where}"
    )
    assert (n, highest) == (905, 1805)
    assert p50 == pytest.approx(2 * 1.02**361 / 2.02)
    assert p99 == pytest.approx(2 * 1.02**379 / 2.02)


def test_the_minutes_add_up_to_the_hours(done: Done) -> None:
    per = "SELECT cluster, queue, sum(enq), sum(ack), sum(gone) FROM {} GROUP BY ALL"
    assert query(done.out, per.format("queue_1m")) == query(done.out, per.format("queue_1h"))


def test_damaged_segments_and_rows_go_to_quarantine_and_nothing_else_suffers(done: Done) -> None:
    names = sorted(path.name for path in (done.out / "quarantine" / "segments").iterdir())
    assert [name.rsplit(".", 1)[1] for name in names] == ["gzip", "sha256"]
    files = str(done.out / "quarantine" / "rows" / "**" / "*.parquet")
    with duckdb.connect() as db:
        errors = db.execute("SELECT error, count(*) FROM read_parquet($1) GROUP BY 1", [files])
        found = sorted(errors.fetchall())
    assert found == [("future", 1), ("key", 1), ("kind", 1), ("parse", 1), ("range", 1)]
    assert query(done.out, "SELECT max(segments_duplicate) FROM data_quality_1h") == [(1,)]


def test_the_report_is_one_page_that_asks_for_nothing(done: Done) -> None:
    page = (done.out / "publish" / "report.html").read_text()
    assert "BOOKS" in page
    assert "cheated" in page
    for outside in ("http://", "https://", "<script", "<link", "<img", "@import", "url("):
        assert outside not in page
    assert len(page) < 2_000_000


def test_silver_counts_are_what_the_manifest_says(done: Done) -> None:
    manifest = commit.Ledger(done.out).load()
    listed = sum(item["rows"] for items in manifest.tables["silver"].values() for item in items)
    assert query(done.out, "SELECT count(*) FROM silver") == [(listed,)]
    ingested = sum(entry["rows"] for entry in manifest.segments.values())
    assert listed == ingested - 5


TABLES = ("consumer_use_1h", "capacity_1d", "member_5m", "blocked_1h", "queue_1h", "queue_1m",
          "audit_1h", "deadletter_1h", "unroutable_1h", "confirm_1h", "usage_1h", "chargeback_1d",
          "queue_last_1h", "flow_10s", "policy_coverage_1h", "idle_exchanges_1h",
          "exchange_last_1h", "poison_1h", "fates_1h")  # fmt: skip


def test_hour_by_hour_and_a_kill_on_the_way_make_the_same_tables(
    done: Done, tmp_path: Path
) -> None:
    """7.1: SIGKILL leaves the old tables; what runs again makes the tables of one whole run."""
    raw, out = tmp_path / "raw", tmp_path / "out"
    source = done.raw / "raw" / "v1"
    late = sorted(path for path in source.rglob("*.gz") if "hh=15" in path.parts[-2])
    early = sorted(path for path in source.rglob("*.gz") if path not in late)
    for path in early:
        place(path, source, raw)
    run(raw, out)
    before = (out / "ledger" / "CURRENT").read_text()
    # The tables of the first hour are those of a version that had a counter less.
    for table, column in (
        ("queue_last_1h", "c_default_limit_drop"),
        ("queue_1h", "default_limit_drop"),
    ):
        for item in commit.Ledger(out).load().paths(table):
            file = out / item
            whole = pyarrow.parquet.ParquetFile(file).read()
            pyarrow.parquet.write_table(whole.drop_columns([column]), file)
            file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    for path in late:
        place(path, source, raw)
    with subprocess.Popen(
        command(raw, out), env=environment(), stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "making the tables" in line:
                break
        process.send_signal(signal.SIGKILL)
    assert (out / "ledger" / "CURRENT").read_text() == before
    assert query(out, "SELECT count(*) FROM queue_1h")[0][0] > 0
    run(raw, out)
    # How complete an hour is, and why it is not judged, may look different from within it.
    columns = (
        "COLUMNS(lambda c: c NOT IN ('run_id', 'completeness', 'not_judged') "
        "AND NOT suffix(c, '_limit_drop'))"
    )
    for table in TABLES:
        sql = f"SELECT {columns} FROM {table}"
        assert close(query(out, sql), query(done.out, sql)), table
    assert "no new telemetry" in run(raw, out)
    # One that was killed after its commit, before the report.
    (out / "ledger" / "PUBLISHED").unlink()
    (out / "publish" / "report.html").write_text("of the run before")
    assert "had published" in run(raw, out)
    assert commit.Ledger(out).load().run_id in (out / "publish" / "report.html").read_text()
    assert "had published" not in run(raw, out)


def test_passes_of_an_hour_each_make_the_same_tables(done: Done, tmp_path: Path) -> None:
    """What is too much for one pass is made hour by hour, as an hourly job would; and what is too
    much for a task by several, some queues each.
    """
    program = (
        "from brokerd_telemetry import commands, queue_windows, recompute; "
        "recompute.PASS_ROWS = 1; queue_windows.PART_ROWS = 100; "
        "queue_windows.TASK_ROWS_MIN = 150; commands.telemetry()"
    )
    passes = subprocess.run(
        [sys.executable, "-c", program, "run", "--raw", str(done.raw), "--out", str(tmp_path)],
        env=environment(), capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert passes.returncode == 0, passes.stderr
    assert "pass 2 of " in passes.stderr
    columns = dict.fromkeys(TABLES, "'run_id'")
    # Times with a zone, as the driver's tables have them, DuckDB hands out by a library of its own.
    columns |= dict.fromkeys(("findings", "data_quality_1h"), "'run_id', 'since', 'window_start'")
    for table, others in columns.items():
        sql = f"SELECT COLUMNS(lambda c: c NOT IN ({others})) FROM {table}"
        assert close(query(tmp_path, sql), query(done.out, sql)), table


def test_a_stream_that_is_killed_twice_makes_the_tables_of_one_whole_run(
    done: Done, tmp_path: Path
) -> None:
    """Within a batch, and after its commit before Spark knows of it; then what is left, at once."""
    raw, out = tmp_path / "raw", tmp_path / "out"
    source = done.raw / "raw" / "v1"
    late = sorted(path for path in source.rglob("*.gz") if "hh=15" in path.parts[-2])
    for path in sorted(path for path in source.rglob("*.gz") if path not in late):
        place(path, source, raw)
    arguments = ["stream" if part == "run" else part for part in command(raw, out)]
    assert killed_at("making the tables", *arguments, "--every", "1").count("done in") == 0
    assert not (out / "ledger" / "CURRENT").exists()
    killed_at("done in", *arguments, "--every", "1")
    # Spark writes that the batch is done a moment later: before the signal or after it.
    for record in (out / "stream" / "commits").glob("[0-9]*"):
        record.unlink()
    committed = commit.Ledger(out).load()
    assert committed.run["rows"] > 0
    for path in late:
        place(path, source, raw)
    said = run_command("stream", "--raw", str(raw), "--out", str(out), "--once")
    # The batch that Spark did not know to be done was offered again, and nothing of it counted.
    assert said.index("no new telemetry") < said.index("done in")
    columns = "COLUMNS(lambda c: c NOT IN ('run_id', 'completeness', 'not_judged'))"
    for table in TABLES:
        sql = f"SELECT {columns} FROM {table}"
        assert close(query(out, sql), query(done.out, sql)), table
    last = commit.Ledger(out).load()
    assert len(last.segments) == len(commit.Ledger(done.out).load().segments)
    assert len(list((out / "ledger" / "manifests").iterdir())) == 2


def killed_at(mark: str, *arguments: str) -> str:
    """Start a command and kill it with its Java process as soon as it says something; return what
    it said till then.  Java by itself would go on for a moment, and write down that all is done.
    """
    said = ""
    with subprocess.Popen(
        arguments, env=environment(), stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            said += line
            if mark in line:
                os.killpg(process.pid, signal.SIGKILL)
                return said
    raise AssertionError(said)


def place(path: Path, source: Path, raw: Path) -> None:
    """Copy a segment to another raw directory."""
    target = raw / "raw" / "v1" / path.relative_to(source)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, target)
