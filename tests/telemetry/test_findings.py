"""Findings: when they are raised and cleared, what a run remembers, and what they advise."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from brokerd_telemetry import findings, gold, queue_windows, rules, schema, sinks
from brokerd_telemetry.findings import Standing
from brokerd_telemetry.manifest import Manifest
from brokerd_telemetry.rules import Facts, Hit

HIT = Hit("queue", "/", "q", 1, 0, "text")
HOURS = [f"2026-11-20T{number:02}" for number in range(10)]
LETTERS = pyarrow.schema(
    [
        ("vhost", pyarrow.string()),
        ("queue", pyarrow.string()),
        ("dlx", pyarrow.string()),
        ("outcome", pyarrow.string()),
        ("lost", pyarrow.int64()),
    ]
)


def states(hits: Container[int], windows: int = 2) -> list[str]:
    reported, standing = [], None
    for number, hour in enumerate(HOURS):
        hit = HIT if number in hits else None
        standing = findings.step(standing, hit, windows, schema.hour_start_us(hour))
        if standing is not None:
            reported.append(f"{hour[-2:]} {standing.status}")
    return reported


def test_a_finding_is_raised_in_its_second_hour_and_clear_after_three() -> None:
    """8.19: no flapping."""
    assert states([1, 2]) == [
        "01 PENDING", "02 RAISED", "03 RAISED", "04 RAISED", "05 CLEAR",
    ]  # fmt: skip


def test_a_finding_that_comes_back_in_time_was_never_clear() -> None:
    assert states([1, 2, 4])[-1] == "07 CLEAR"
    assert [line for line in states([1, 2, 4]) if "CLEAR" in line] == ["07 CLEAR"]


def test_a_finding_that_comes_back_after_it_was_clear_is_a_new_one() -> None:
    assert states([1, 2, 6])[-2:] == ["05 CLEAR", "06 PENDING"]
    began = findings.step(Standing("CLEAR", 0, HIT, 0, 3), HIT, 1, 77)
    assert began is not None
    assert (began.status, began.since_us) == ("RAISED", 77)


def test_a_single_hour_does_not_raise_unless_the_rule_is_certain() -> None:
    assert states([3]) == ["03 PENDING"]
    assert states([3], windows=1) == ["03 RAISED", "04 RAISED", "05 RAISED", "06 CLEAR"]


def test_a_rule_may_name_how_many_hours_raise_it() -> None:
    assert states(range(9), windows=7)[5:8] == ["05 PENDING", "06 RAISED", "07 RAISED"]
    # An hour without begins anew.
    assert "RAISED" not in "".join(states([0, 1, 2, 3, 4, 6, 7, 8, 9], windows=7))


class Tables:
    """An output directory with the two tables that a lost dead letter needs."""

    def __init__(self, out_dir: Path) -> None:
        self.out_dir = out_dir
        self.manifest = Manifest()
        self.live = sinks.Live(out_dir, self.manifest)

    def put(self, table: str, hour: str, shape: pyarrow.Schema, *rows: dict[str, Any]) -> None:
        lines = [{"hour_us": schema.hour_start_us(hour), **row} for row in rows]
        run = f"{table}-{hour}-{len(list(self.out_dir.rglob('*.parquet')))}"
        files = sinks.write_rows(lines, shape, self.out_dir, table, run)
        self.manifest.replace_hours(table, [hour], files)

    def hour(self, hour: str, *queues: str, clusters: tuple[str, ...] = ("c",)) -> None:
        """An hour in which letters of these queues were lost."""
        quality = {"rows": 1, "gap_rows": 0, "bad_rows": 0, "completeness": 1.0, "node": "n"}
        reported = [{"cluster": cluster, **quality} for cluster in clusters]
        self.put("data_quality_1h", hour, gold.QUALITY_SCHEMA, *reported)
        letters = {"vhost": "/", "dlx": "dlx", "outcome": "dlx_missing", "lost": 3}
        lost = [{"cluster": "c", "queue": queue, **letters} for queue in queues]
        self.put("deadletter_1h", hour, LETTERS, *lost)

    def run(self, *hours: str) -> list[tuple[Any, ...]]:
        """Evaluate these hours anew, as a run does; return (hour, object, status, since)."""
        lines = findings.evaluate(self.live, list(hours))
        for hour in hours:
            own = [line for line in lines if line["hour_us"] == schema.hour_start_us(hour)]
            self.put("findings", hour, gold.FINDINGS_SCHEMA, *own)
        return [
            (schema.hour_of(line["hour_us"])[-2:], line["object"], line["status"],
             schema.hour_of(line["since"])[-2:])
            for line in lines
        ]  # fmt: skip


def test_a_finding_is_remembered_from_run_to_run(tmp_path: Path) -> None:
    """Each hour by a run of its own; the hours before it are not looked at again."""
    tables = Tables(tmp_path)
    reported = []
    for number, hour in enumerate(HOURS):
        tables.hour(hour, *(["q"] if number in (1, 2) else []))
        reported += tables.run(hour)
    assert reported == [
        ("01", "q", "RAISED", "01"), ("02", "q", "RAISED", "01"), ("03", "q", "RAISED", "01"),
        ("04", "q", "RAISED", "01"), ("05", "q", "CLEAR", "01"),
    ]  # fmt: skip
    latest = findings.latest(tables.live, HOURS[3])
    assert [(row["object"], row["status"]) for row in latest] == [("q", "RAISED")]


def test_what_comes_late_changes_the_hours_after_it(tmp_path: Path) -> None:
    tables = Tables(tmp_path)
    for hour in HOURS[:5]:
        tables.hour(hour)
        assert tables.run(hour) == []
    tables.hour(HOURS[1], "q")
    assert tables.run(*HOURS[1:5]) == [
        ("01", "q", "RAISED", "01"), ("02", "q", "RAISED", "01"), ("03", "q", "RAISED", "01"),
        ("04", "q", "CLEAR", "01"),
    ]  # fmt: skip


def test_a_cluster_that_tells_nothing_is_neither_better_nor_worse(tmp_path: Path) -> None:
    tables = Tables(tmp_path)
    tables.hour(HOURS[0], "q", clusters=("c", "other"))
    tables.run(HOURS[0])
    for hour in HOURS[1:6]:
        tables.hour(hour, clusters=("other",))
        assert tables.run(hour) == []
    tables.hour(HOURS[6], clusters=("c",))
    assert tables.run(HOURS[6]) == [("06", "q", "RAISED", "00")]


def test_a_finding_of_a_rule_that_is_no_more_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = Tables(tmp_path)
    tables.hour(HOURS[0], "q")
    tables.run(HOURS[0])
    monkeypatch.setattr(rules, "RULES", ())
    monkeypatch.setattr(rules, "BY_ID", {})
    tables.hour(HOURS[1], "q")
    assert tables.run(HOURS[1]) == []


def test_findings_are_bounded_and_the_worst_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(findings, "FINDINGS_MAX", 3)
    tables = Tables(tmp_path)
    tables.hour(HOURS[0], *(f"q{number}" for number in range(10)))
    assert len(tables.run(HOURS[0])) == 3


def test_messages_dropped_for_the_default_limit_are_a_finding_with_advice() -> None:
    rule = rules.BY_ID["LIMIT-DROP"]
    row = {"vhost": "v", "queue": "q", "default_limit_drop": 3}
    (hit,) = rule.check(row, Facts())
    assert (hit.object_type, hit.vhost, hit.name, hit.value) == ("queue", "v", "q", 3)
    assert hit.message.startswith("3 messages were dropped for the default delivery limit")
    assert (rule.severity, rule.at_once) == ("critical", True)
    assert "dead letter exchange" in rule.action
    assert "delivery-limit" in rule.action
    # None of them, and an hour that was told before the counter came.
    assert not list(rule.check(row | {"default_limit_drop": 0}, Facts()))
    assert not list(rule.check({"vhost": "v", "queue": "q"}, Facts()))


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: str(rule.id))
def test_each_rule_reads_a_table_that_is_made(rule: rules.Rule) -> None:
    made = {
        *gold.TABLES,
        queue_windows.MINUTES,
        queue_windows.HOURS,
        "data_quality_1h",
        "dlx_cycle_1h",
    }
    assert rule.table in made
    assert rule.severity in ("critical", "warning", "info")


DAY_S = 86_400


def idle(out_days: float, in_days: float, ready: int = 0, unacked: int = 0) -> list[Hit]:
    row = {"vhost": "/", "queue": "q", "ready": ready, "unacked": unacked, "bytes": 100,
           "idle_out_s": out_days * DAY_S, "idle_in_s": in_days * DAY_S}  # fmt: skip
    return list(rules.BY_ID["IDLE"].check(row, Facts()))


def test_a_queue_is_idle_when_dead_or_when_it_keeps_what_nobody_takes() -> None:
    assert idle(13.9, 20) == []
    assert idle(20, 13.9) == []
    (dead,) = idle(15, 20)
    assert dead.value == 15
    assert "empty" in dead.message
    assert idle(6.9, 0, ready=5) == []
    (hoarder,) = idle(8, 0, ready=5, unacked=2)
    assert "keeps 7 messages (100 octets), and nothing was taken for 8 days" in hoarder.message


def test_a_queue_in_which_an_exchange_keeps_messages_needs_no_consumer() -> None:
    row = {"cluster": "c", "vhost": "/", "ready_last": 5, "unread_s": 9e5, "c_ack_last": 0}
    row |= {"ready": 5, "unacked": 0, "bytes": 9, "idle_out_s": 9e9, "idle_in_s": 9e9}
    for name in ("Q-UNREAD", "IDLE"):
        check = rules.BY_ID[name].check
        assert list(check(row | {"queue": "q"}, Facts()))
        assert not list(check(row | {"queue": "amq.delayed.later"}, Facts()))


def useless(state: str, **fields: Any) -> list[Hit]:
    row = {"vhost": "/", "policy_kind": "policy", "policy": "p", "apply_to": "queues",
           "priority": 3, "state": state, "matched": 0, "lost_to": None, **fields}  # fmt: skip
    return list(rules.BY_ID["POLICY-UNUSED"].check(row, Facts()))


def test_a_policy_that_holds_for_nothing_is_told_after_a_day() -> None:
    """8.14: it may be there before the queues that it is for."""
    assert useless("wins", matched=2) == useless("unknown") == []
    # A row of the same table about a kind of objects.
    assert useless(None) == []  # type: ignore[arg-type]
    (nothing,) = useless("matches_nothing")
    assert (nothing.object_type, nothing.name) == ("policy", "p")
    assert nothing.message == "it matches nothing (apply-to queues, priority 3)"
    (shadowed,) = useless("shadowed", matched=2, lost_to="q", policy_kind="operator_policy")
    assert shadowed.object_type == "operator_policy"
    assert "it matches 2 objects and holds for none: 'q' wins" in shadowed.message
    rule = rules.BY_ID["POLICY-UNUSED"]
    assert (rule.severity, rule.raised_after) == ("info", 24)


def test_an_exchange_is_idle_after_a_fortnight_and_unbound_after_a_day() -> None:
    """8.13.  One that messages come to by way of another exchange is not judged."""
    idle, unbound = rules.BY_ID["IDLE-EXCHANGE"], rules.BY_ID["UNBOUND"]
    row = {"vhost": "/", "exchange": "x", "idle_in_s": 13.9 * DAY_S, "is_unbound": False}
    assert not [*idle.check(row, Facts()), *unbound.check(row, Facts())]
    assert not list(idle.check(row | {"idle_in_s": None}, Facts()))
    (hit,) = idle.check(row | {"idle_in_s": 15.0 * DAY_S}, Facts())
    assert (hit.object_type, hit.name, hit.value) == ("exchange", "x", 15)
    (hit,) = unbound.check(row | {"is_unbound": True}, Facts())
    assert "nothing is bound to it, and it has no alternate exchange" in hit.message
    assert (idle.raised_after, unbound.raised_after) == (2, 24)


def capacity(verdict: str = "ok", **fields: Any) -> dict[str, Any]:
    base = {"node": "n0", "verdict": verdict, "memory_limit": 1 << 30, "memory_target": 2 << 30,
            "memory_p95": 1 << 29, "capped_by": None, "days": 7, "disk_days_left": None,
            "disk_free": 10e9, "disk_growth": -2e9}  # fmt: skip
    return base | fields


def test_a_recommendation_says_what_it_is_made_of_and_what_holds_it_back() -> None:
    check = rules.BY_ID["CAP"].check
    assert list(check(capacity(), Facts())) == []
    assert list(check(capacity("not_enough_data"), Facts())) == []
    (hit,) = check(capacity("grow", capped_by="peak"), Facts())
    assert hit.message == (
        "memory: grow from 1.00 to 2.00 GiB, not less because of its peak; 95 % of 7 days were "
        "under 0.50 GiB"
    )


def test_a_disk_that_fills_is_told_a_week_before_and_not_after_one_day() -> None:
    check = rules.BY_ID["DISK-FILLS"].check
    assert list(check(capacity(), Facts())) == []
    assert list(check(capacity(disk_days_left=8.0), Facts())) == []
    assert list(check(capacity(disk_days_left=1.0, days=2), Facts())) == []
    (hit,) = check(capacity(disk_days_left=4.5), Facts())
    assert hit.message == "10.0 GB are free, 2.00 GB less each day: at the limit in 4.5 days"


def test_a_forecast_says_how_far_those_before_it_were_off() -> None:
    row = {"cluster": "c", "vhost": "/", "queue": "q", "ttf_s": 600.0, "ttf_lo_s": 300.0,
           "ttf_hi_s": 900.0, "level": 5, "max_len": 10, "net_rate": 0.1}  # fmt: skip
    check = rules.BY_ID["Q-FULL-1H"].check
    (first,) = check(row, Facts())
    assert first.message.endswith("full in 10 min (5 to 15)")
    (later,) = check(row, Facts(forecast_error={"c": 0.042}))
    assert later.message.endswith("full in 10 min (5 to 15); forecasts of the last day were 4% off")
