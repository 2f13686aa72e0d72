"""Findings by rule from the gold tables (design/telemetry.md §8.19).

Stateless: each run looks at the last hours again, so doing it twice gives the same.  A condition
is PENDING in its first hour, RAISED from the second on, CLEAR after three hours without; rules that
are certain at once, or name their own time, are raised at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brokerd_telemetry import schema, sinks

if TYPE_CHECKING:
    from brokerd_telemetry.commit import Manifest

RAISE_WINDOWS = 2
CLEAR_WINDOWS = 3
#: Hours looked at before the touched ones: enough to know every state.
HISTORY_HOURS = 24

Row = dict[str, Any]


@dataclass(slots=True, frozen=True)
class Rule:
    """One rule: reads one table's rows of one hour."""

    id: str
    severity: str
    table: str
    at_once: bool
    action: str
    check: Callable[[Row], Hit | None]


@dataclass(slots=True, frozen=True)
class Hit:
    """What a rule found in a row."""

    object_type: str
    vhost: str
    name: str
    value: float
    threshold: float
    message: str


def _lost_letters(row: Row) -> Hit | None:
    if not row["lost"]:
        return None
    return Hit(
        "queue", row["vhost"], row["queue"], row["lost"], 0,
        f"{row['lost']} dead letters lost ({row['outcome']}), "
        f"dead letter exchange '{row['dlx'] or ''}'",
    )  # fmt: skip


def _stuck_letters(row: Row) -> Hit | None:
    age_ms = row["dl_pending_age_max_ms"] or 0
    if age_ms <= 900_000:
        return None
    return Hit(
        "queue", row["vhost"], row["queue"], age_ms / 1000, 900,
        f"{row['dl_pending_last']} dead letters wait, the oldest since {age_ms / 60_000:.0f} min",
    )  # fmt: skip


def _missing_alternate(row: Row) -> Hit | None:
    if not row["ae_missing"]:
        return None
    return Hit(
        "exchange", row["vhost"], row["exchange"], row["ae_missing"], 0,
        f"{row['ae_missing']} messages met an alternate exchange that does not exist",
    )  # fmt: skip


def _alternate_cycle(row: Row) -> Hit | None:
    if not row["ae_cycle"]:
        return None
    return Hit(
        "exchange", row["vhost"], row["exchange"], row["ae_cycle"], 0,
        f"{row['ae_cycle']} messages went round a ring of alternate exchanges and were not routed",
    )  # fmt: skip


def _unroutable(row: Row) -> Hit | None:
    if row["outcome"] != "all" or not row["unroutable_ratio"]:
        return None
    count = row["returned"] + row["dropped"] + row["ae_missing"] + row["ae_cycle"]
    if row["unroutable_ratio"] <= 0.001 or count < 10:
        return None
    return Hit(
        "exchange", row["vhost"], row["exchange"], row["unroutable_ratio"], 0.001,
        f"{count} messages ({row['unroutable_ratio']:.1%}) found no queue",
    )  # fmt: skip


def _poison(row: Row) -> Hit | None:
    if not row["over_limit"]:
        return None
    return Hit(
        "queue", row["vhost"], row["queue"], row["over_limit"], 0,
        f"{row['over_limit']} messages were given up after the delivery limit",
    )  # fmt: skip


def _default_limit(row: Row) -> Hit | None:
    # Tables of hours before the counter came do not have it.
    count = row.get("default_limit_drop")
    if not count:
        return None
    return Hit(
        "queue", row["vhost"], row["queue"], count, 0,
        f"{count} messages were dropped for the default delivery limit: consumers went away with "
        "them time and again, and there is no dead letter exchange",
    )  # fmt: skip


def _stopped(row: Row) -> Hit | None:
    is_stopped = row["ready_last"] and not row["dlv"] and not row["consumers_max"]
    if not is_stopped or row["seconds"] is None or row["seconds"] < 900:
        return None
    return Hit(
        "queue", row["vhost"], row["queue"], row["ready_last"], 0,
        f"{row['ready_last']} messages wait and nobody consumes",
    )  # fmt: skip


def _episode(row: Row) -> Hit | None:
    if row["duration_s"] < 10:
        return None
    blamed = ", ".join(f"{item['user']} ({item['share']:.0%})" for item in row["blame"] or ())
    blocked = ", ".join(row["users"] or ())
    return Hit(
        "member", "", row["node"], row["duration_s"], 10,
        f"memory alarm for {row['duration_s']:.0f} s; inflow by {blamed or 'nobody'}; "
        f"blocked: {blocked or 'nobody'}, {row['blocked_conn_s']:.0f} connection seconds",
    )  # fmt: skip


def _slow_confirms(row: Row) -> Hit | None:
    share = row["over_target_ratio"] or 0
    if share <= 0.01 or row["n"] < 100:
        return None
    return Hit(
        "exchange", row["vhost"], row["exchange"], share, 0.01,
        f"{share:.1%} of confirms took longer than 100 ms (p99 {row['p99_us'] / 1000:.0f} ms)",
    )  # fmt: skip


def _books(row: Row) -> Hit | None:
    if not row["residual"]:
        return None
    return Hit(
        row["equation"], row["vhost"], row["object"], row["residual"], 0,
        f"the books do not balance ({row['equation']}): counted {row['counted']}, "
        f"expected {row['expected']}",
    )  # fmt: skip


def _lost_telemetry(row: Row) -> Hit | None:
    if row["completeness"] >= 0.95:
        return None
    return Hit(
        "member", "", row["node"], row["completeness"], 0.95,
        f"{row['completeness']:.1%} of the hour was told; {row['gap_rows']} rows were lost",
    )  # fmt: skip


def _stuck_link(row: Row) -> Hit | None:
    if not row["is_stuck"]:
        return None
    return Hit(
        "link", row["vhost"] or "", row["link"], row["backlog_last"], 0,
        f"the link says it runs, nothing comes, {row['backlog_last']} messages wait upstream",
    )  # fmt: skip


RULES = (
    Rule("DL-LOST", "critical", "deadletter_1h", True,
         "create the dead letter exchange or the binding that is missing", _lost_letters),
    Rule("DL-STUCK", "critical", "queue_1h", True,
         "look at the target queue: is it full, or without a leader?", _stuck_letters),
    Rule("UNR-DROP", "warning", "unroutable_1h", False,
         "bind a queue for these routing keys, or name an alternate exchange", _unroutable),
    Rule("AE-MISSING", "critical", "unroutable_1h", True,
         "create the exchange that the argument or policy names", _missing_alternate),
    Rule("AE-CYCLE", "warning", "unroutable_1h", False,
         "break the ring of alternate exchanges", _alternate_cycle),
    Rule("POISON", "warning", "queue_1h", True,
         "look at the dead letters of this queue: some message cannot be handled", _poison),
    Rule("LIMIT-DROP", "critical", "queue_1h", True,
         "name a dead letter exchange, or set a delivery-limit (-1: none) by argument, policy or "
         "resource", _default_limit),
    Rule("Q-STOPPED", "critical", "queue_1h", True, "start a consumer", _stopped),
    Rule("MEM-EPISODE", "warning", "memory_episode", True,
         "give the member more memory, or limit who sends most", _episode),
    Rule("FED-STUCK", "critical", "federation_5m", True,
         "look at the link and its upstream", _stuck_link),
    Rule("CONF-SLO", "warning", "confirm_1h", False,
         "look at disk and network of the queue's leader", _slow_confirms),
    Rule("BOOKS", "critical", "audit_1h", True,
         "please report this: it is a bug of the broker", _books),
    Rule("TELE-LOSS", "warning", "data_quality_1h", True,
         "was this member killed? Otherwise look at its disk", _lost_telemetry),
)  # fmt: skip


def evaluate(out_dir: Path, manifest: Manifest, hours: list[str]) -> list[Row]:
    """Return the findings of the touched hours, one line per finding and hour."""
    first = schema.hour_of(schema.hour_start_us(hours[0]) - HISTORY_HOURS * schema.HOUR_US)
    known = [hour for hour in sorted(manifest.tables["silver"]) if hour >= first]
    hits: dict[tuple[str, str, str, str, str], dict[str, Hit]] = {}
    for rule in RULES:
        for hour in known:
            for row in sinks.read_rows(out_dir, manifest, rule.table, [hour]):
                hit = rule.check(row)
                if hit is not None:
                    key = (row["cluster"], rule.id, hit.object_type, hit.vhost, hit.name)
                    worst = hits.setdefault(key, {}).get(hour)
                    if worst is None or abs(hit.value) > abs(worst.value):
                        hits[key][hour] = hit
    lines: list[Row] = []
    rules = {rule.id: rule for rule in RULES}
    for key, by_hour in hits.items():
        rule = rules[key[1]]
        for hour, status, since, hit in _states(known, by_hour, rule.at_once):
            if hour in hours:
                lines.append(_line(key, rule, hour, status, since, hit))
    return lines


def _states(
    hours: list[str], hits: dict[str, Hit], at_once: bool
) -> Iterator[tuple[str, str, str, Hit]]:
    """Walk the hours: (hour, status, since, what was last seen) while there is something."""
    seen = quiet = 0
    since, last, is_raised = "", None, False
    for hour in hours:
        hit = hits.get(hour)
        if hit is not None:
            seen, quiet, last = seen + 1, 0, hit
            since = since or hour
            is_raised = is_raised or at_once or seen >= RAISE_WINDOWS
            yield hour, "RAISED" if is_raised else "PENDING", since, hit
            continue
        seen, quiet = 0, quiet + 1
        if last is None:
            continue
        if is_raised and quiet < CLEAR_WINDOWS:
            yield hour, "RAISED", since, last
        else:
            if is_raised:
                yield hour, "CLEAR", since, last
            since, last, is_raised = "", None, False


def _line(
    key: tuple[str, str, str, str, str], rule: Rule, hour: str, status: str, since: str, hit: Hit
) -> Row:
    return {
        "cluster": key[0],
        "hour_us": schema.hour_start_us(hour),
        "id": hashlib.sha256("\0".join(key).encode()).hexdigest()[:16],
        "rule": rule.id,
        "severity": rule.severity,
        "status": status,
        "since": schema.hour_start_us(since),
        "object_type": hit.object_type,
        "vhost": hit.vhost,
        "object": hit.name,
        "value": float(hit.value),
        "threshold": float(hit.threshold),
        "message": hit.message,
        "action": rule.action,
        "evidence": rule.table,
    }
