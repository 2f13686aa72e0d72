"""The rules of findings: what a row of a table must say for something to be found.  PURE.

design/telemetry.md §8.19 and Annex B.  A rule reads one row of one table, and may look at the facts
of that hour beside it.  When a finding is raised and cleared is `findings.py`'s.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from brokerd_telemetry import schema

Row = dict[str, Any]

#: A retry loop takes a few rounds; a letter that went round so often comes to nothing.
ROUNDS_MAX = 10.0
DAY_S = 86_400
#: Hours in a row that raise a finding, if its rule names no others.
RAISE_WINDOWS = 2
#: A policy may be there before what it is for.
DAY_WINDOWS = 24
#: So long nothing came to a queue and nothing was taken, or nothing was taken of what lies there.
DEAD_DAYS, HOARDER_DAYS = 14.0, 7.0
DISK_DAYS = 7.0
#: Queues in which exchanges of type x-delayed-message keep what is not due: nothing consumes them,
#: and they stand as long as their exchange.
DELAYED_PREFIX = "amq.delayed."
#: Time that messages have waited with no consumer.
UNREAD_S = 900.0


@dataclass(slots=True, frozen=True)
class Hit:
    """What a rule found in a row.  advice: in place of the rule's own."""

    object_type: str
    vhost: str
    name: str
    value: float
    threshold: float
    message: str
    advice: str = ""
    #: Of a link: its upstream.
    upstream: str = ""


@dataclass(slots=True)
class Facts:
    """What is known of an hour beside the row."""

    #: (cluster, vhost, queue) that dead letters came to in the last day.
    letter_boxes: set[tuple[str, str, str]] = field(default_factory=set)
    #: By cluster, how far forecasts of the last day were off in the median, in shares of the limit.
    forecast_error: dict[str, float] = field(default_factory=dict)
    #: (cluster, rule, object type, vhost, name) of findings that were there the hour before.
    standing: set[tuple[str, str, str, str, str]] = field(default_factory=set)


Check = Callable[[Row, Facts], Iterable[Hit]]


@dataclass(slots=True, frozen=True)
class Rule:
    """One rule.  windows: hours in a row that raise it; at_once: one is enough."""

    id: str
    severity: str
    table: str
    at_once: bool
    action: str
    check: Check
    windows: int = RAISE_WINDOWS

    @property
    def raised_after(self) -> int:
        """Return the number of hours in a row with a hit that raise a finding."""
        return 1 if self.at_once else self.windows


def _lost_letters(row: Row, _: Facts) -> Iterable[Hit]:
    if not row["lost"]:
        return
    exchange = row["dlx"] or ""
    advice = {
        "dlx_missing": f"create the exchange '{exchange}', or name another one",
        "unroutable": f"bind a queue to the exchange '{exchange}' for the keys of these letters",
        "cycle_dropped": (
            f"letters of this queue come back to it by the exchange '{exchange}' without having "
            "been rejected: send them elsewhere, or consume and reject them on their way"
        ),
        "dl_lost": "letters that waited were purged or given up",
    }
    yield Hit(
        "queue", row["vhost"], row["queue"], row["lost"], 0,
        f"{row['lost']:,} dead letters lost ({row['outcome']}), dead letter exchange '{exchange}'",
        advice.get(row["outcome"], ""),
    )  # fmt: skip


def _stuck_letters(row: Row, _: Facts) -> Iterable[Hit]:
    age_ms = row["dl_pending_age_max_ms"] or 0
    if age_ms > 900_000 and row["dl_pending_last"]:
        # Its settings end that letters wait: those that did go on (ADR 67).
        is_of_old = row["strategy"] == "at-most-once"
        yield Hit(
            "queue", row["vhost"], row["queue"], age_ms / 1000, 900,
            f"{row['dl_pending_last']:,} dead letters wait, the oldest since "
            f"{age_ms / 60_000:.0f} min"
            + (", under settings that the queue no longer has" if is_of_old else ""),
            "look at the target queue, or give the letters up: brokerctl "
            f"-p {shlex.quote(row['vhost'])} purge_queue {shlex.quote(row['queue'])} --dead-letters"
            if is_of_old else "",
        )  # fmt: skip


def _endless_letters(row: Row, _: Facts) -> Iterable[Hit]:
    if row["rounds"] < ROUNDS_MAX:
        return
    for queue in row["queues"]:
        yield Hit(
            "queue", row["vhost"], queue, row["rounds"], ROUNDS_MAX,
            f"{row['messages']:,} messages went round {row['rounds']:.0f} times each "
            f"({', '.join(row['reasons'])}): {row['ring']}",
            "break the ring: set a delivery-limit, or count x-death and give up; which messages: "
            f"brokerctl -p {shlex.quote(row['vhost'])} triage {shlex.quote(queue)} --state all",
        )  # fmt: skip


def _missing_alternate(row: Row, _: Facts) -> Iterable[Hit]:
    if row["outcome"] == "all" and row["ae_missing"]:
        yield Hit(
            "exchange", row["vhost"], row["exchange"], row["ae_missing"], 0,
            f"{row['ae_missing']:,} messages met an alternate exchange that does not exist",
        )  # fmt: skip


def _alternate_cycle(row: Row, _: Facts) -> Iterable[Hit]:
    if row["outcome"] == "all" and row["ae_cycle"]:
        yield Hit(
            "exchange", row["vhost"], row["exchange"], row["ae_cycle"], 0,
            f"{row['ae_cycle']:,} messages went round a ring of alternate exchanges and were not "
            "routed",
        )  # fmt: skip


def _unroutable(row: Row, _: Facts) -> Iterable[Hit]:
    """Of clients only, and for want of a binding: what else is unroutable is reported elsewhere."""
    count = row["unbound"] or 0
    came = row["in"] or 0
    if row["outcome"] != "all" or count < 10 or count <= came * 0.001:
        return
    yield Hit(
        "exchange", row["vhost"], row["exchange"], count / came, 0.001,
        f"{count:,} messages ({count / came:.1%}) found no queue",
    )  # fmt: skip


def _poison(row: Row, _: Facts) -> Iterable[Hit]:
    if row["over_limit"]:
        yield Hit(
            "queue", row["vhost"], row["queue"], row["over_limit"], 0,
            f"{row['over_limit']:,} messages were given up after the delivery limit",
        )  # fmt: skip


def _default_limit(row: Row, _: Facts) -> Iterable[Hit]:
    # Tables of hours before the counter came do not have it.
    count = row.get("default_limit_drop")
    if count:
        yield Hit(
            "queue", row["vhost"], row["queue"], count, 0,
            f"{count:,} messages were dropped for the default delivery limit: consumers gave them "
            "back or went away with them time and again, and there is no dead letter exchange",
        )  # fmt: skip


def _stopped(row: Row, facts: Facts) -> Iterable[Hit]:
    """A queue whose consumers are gone.  One that never was worked off is no such queue, nor one
    that dead letters lie in until somebody looks (a parking lot).
    """
    unread_s = row.get("unread_s") or 0
    if unread_s < UNREAD_S or not row.get("c_ack_last"):
        return
    is_box = (row["cluster"], row["vhost"], row["queue"]) in facts.letter_boxes
    key = (row["cluster"], "Q-STOPPED", "queue", row["vhost"], row["queue"])
    if is_box and not row["consumers_max"] and key not in facts.standing:
        return
    yield _unread(row, unread_s, "nobody consumes")


def _never_read(row: Row, facts: Facts) -> Iterable[Hit]:
    unread_s = row.get("unread_s") or 0
    is_box = (row["cluster"], row["vhost"], row["queue"]) in facts.letter_boxes
    if row["queue"].startswith(DELAYED_PREFIX):
        return
    if unread_s >= UNREAD_S and not row.get("c_ack_last") and not is_box:
        yield _unread(row, unread_s, "nobody has ever acknowledged one")


def _unread(row: Row, unread_s: float, why: str) -> Hit:
    return Hit(
        "queue", row["vhost"], row["queue"], unread_s, UNREAD_S,
        f"{row['ready_last']:,} messages wait, since {unread_s / 60:.0f} min, and {why}",
    )  # fmt: skip


def _stalled(row: Row, _: Facts) -> Iterable[Hit]:
    is_reported = (row["seconds"] or 0) >= UNREAD_S
    is_held = row["ready_last"] and row["unacked_last"] and row["consumers_min"]
    if is_reported and is_held and not row["ack"] and not row["gone"]:
        yield Hit(
            "queue", row["vhost"], row["queue"], row["unacked_last"], 0,
            f"{row['unacked_last']:,} messages are with consumers that settled none in "
            f"{row['seconds'] / 60:.0f} min; {row['ready_last']:,} wait behind them",
        )  # fmt: skip


def _fills(least_s: float, most_s: float) -> Check:
    """Return the check of queues that will be full between these two, at the hour's rate."""

    def check(row: Row, facts: Facts) -> Iterable[Hit]:
        if least_s <= row["ttf_s"] < most_s:
            low, high = (row[name] / 60 for name in ("ttf_lo_s", "ttf_hi_s"))
            error = facts.forecast_error.get(row["cluster"])
            past = "" if error is None else f"; forecasts of the last day were {error:.0%} off"
            yield Hit(
                "queue", row["vhost"], row["queue"], row["ttf_s"], most_s,
                f"{row['level']:,} of {row['max_len']:,} messages, and {row['net_rate']:.2f} more "
                f"each second: full in {row['ttf_s'] / 60:.0f} min ({low:.0f} to {high:.0f}){past}",
            )  # fmt: skip

    return check


def _idle(row: Row, _: Facts) -> Iterable[Hit]:
    """Dead: no client uses it, and it is empty.  Hoarder: it keeps what no client takes."""
    if row["queue"].startswith(DELAYED_PREFIX):
        return
    days = row["idle_out_s"] / DAY_S
    if row["ready"] or row["unacked"]:
        if days >= HOARDER_DAYS:
            yield Hit(
                "queue", row["vhost"], row["queue"], days, HOARDER_DAYS,
                f"it keeps {row['ready'] + row['unacked']:,} messages ({row['bytes']:,} octets), "
                f"and nothing was taken for {days:.0f} days",
            )  # fmt: skip
        return
    days = min(days, row["idle_in_s"] / DAY_S)
    yield from _dead(row, "queue", days, "it is empty, and nothing came or went")


def _idle_exchange(row: Row, _: Facts) -> Iterable[Hit]:
    # Null where its messages come by way of another exchange, and are counted there.
    days = (row["idle_in_s"] or 0) / DAY_S
    yield from _dead(row, "exchange", days, "nothing was published to it")


def _dead(row: Row, kind: str, days: float, why: str) -> Iterable[Hit]:
    if days >= DEAD_DAYS:
        why = f"{why} for {days:.0f} days"
        yield Hit(kind, row["vhost"], row[kind], days, DEAD_DAYS, why)


def _unbound(row: Row, _: Facts) -> Iterable[Hit]:
    if row["is_unbound"]:
        yield Hit(
            "exchange", row["vhost"], row["exchange"], 0, 0,
            "nothing is bound to it, and it has no alternate exchange: what is published to it is "
            "returned or dropped",
        )  # fmt: skip


def _useless_policy(row: Row, _: Facts) -> Iterable[Hit]:
    if row["state"] == "matches_nothing":
        why = "it matches nothing"
    elif row["state"] == "shadowed":
        count = row["matched"]
        why = f"it matches {count:,} object{'s' if count > 1 else ''} and holds for none"
        if row["lost_to"]:
            why += f": '{row['lost_to']}' wins"
    else:
        return
    yield Hit(
        row["policy_kind"], row["vhost"], row["policy"], row["matched"], 0,
        f"{why} (apply-to {row['apply_to']}, priority {row['priority']})",
    )  # fmt: skip


def _capacity(row: Row, _: Facts) -> Iterable[Hit]:
    if row["verdict"] not in ("grow", "shrink"):
        return
    gib = 1 << 30
    by = f", not less because of its {row['capped_by']}" if row["capped_by"] else ""
    yield Hit(
        "member", "", row["node"], row["memory_target"] / gib, row["memory_limit"] / gib,
        f"memory: {row['verdict']} from {row['memory_limit'] / gib:.2f} to "
        f"{row['memory_target'] / gib:.2f} GiB{by}; 95 % of {row['days']} days were under "
        f"{row['memory_p95'] / gib:.2f} GiB",
    )  # fmt: skip


def _disk_fills(row: Row, _: Facts) -> Iterable[Hit]:
    left = row["disk_days_left"]
    if left is not None and left < DISK_DAYS and row["days"] >= 3:
        yield Hit(
            "member", "", row["node"], left, DISK_DAYS,
            f"{row['disk_free'] / 1e9:.1f} GB are free, {-row['disk_growth'] / 1e9:.2f} GB less "
            f"each day: at the limit in {left:.1f} days",
        )  # fmt: skip


def _stalled_disk(row: Row, _: Facts) -> Iterable[Hit]:
    if row["stalled_s"]:
        yield Hit(
            "member", "", row["node"], row["stalled_s"], 0,
            f"its disk did not answer for {row['stalled_s']:.1f} s",
        )  # fmt: skip


def _imbalance(row: Row, _: Facts) -> Iterable[Hit]:
    # Few queues cannot be even.
    if (
        row["leaders"] >= 10
        and (row["count_ratio"] or 0) > 1.25
        and (row["load_ratio"] or 0) > 1.25
    ):
        yield Hit(
            "member", "", row["node"], row["load_ratio"], 1.25,
            f"it leads {row['leaders']:,} queues, {row['count_ratio']:.1f} times the mean, with "
            f"{row['load_ratio']:.1f} times the mean of what comes in",
        )  # fmt: skip


def _episode(row: Row, _: Facts) -> Iterable[Hit]:
    if row["duration_s"] < 10:
        return
    blamed = ", ".join(f"{item['user']} ({item['share']:.0%})" for item in row["blame"] or ())
    blocked = ", ".join(row["users"] or ())
    yield Hit(
        "member", "", row["node"], row["duration_s"], 10,
        f"memory alarm for {row['duration_s']:.0f} s; inflow by {blamed or 'nobody'}; "
        f"blocked: {blocked or 'nobody'}, {row['blocked_conn_s']:.0f} connection seconds",
    )  # fmt: skip


def _slow_confirms(row: Row, _: Facts) -> Iterable[Hit]:
    share = row["over_target_ratio"] or 0
    if share > 0.01 and row["n"] >= 100:
        yield Hit(
            "exchange", row["vhost"], row["exchange"], share, 0.01,
            f"{share:.1%} of confirms took longer than 100 ms (p99 {row['p99_us'] / 1000:.0f} ms)",
        )  # fmt: skip


#: What an equation of the books is about.
_BOOKED = {
    "queue": "queue",
    "exchange": "exchange",
    "letters": "queue",
    "copies": "vhost",
}


def _books(row: Row, _: Facts) -> Iterable[Hit]:
    if row["residual"]:
        equation = row["equation"]
        yield Hit(
            _BOOKED[equation], row["vhost"],
            row["vhost"] if equation == "copies" else row["object"], row["residual"], 0,
            f"the books do not balance ({equation}): counted {row['counted']:,}, "
            f"expected {row['expected']:,}",
        )  # fmt: skip


def _lost_telemetry(row: Row, _: Facts) -> Iterable[Hit]:
    if row["completeness"] < 0.95 and not row.get("is_off"):
        why = row.get("why") or f"{row['node']}: {row['gap_rows']:,} rows lost"
        seen = "nothing" if not row["rows"] else f"{row['completeness']:.1%}"
        yield Hit(
            "member", "", row["node"], row["completeness"], 0.95,
            f"{seen} of its hour was seen: {why}",
            "" if row["rows"] else "other members say that it was up: have the job ask it, or see "
            "why it does not answer",
        )  # fmt: skip


def _telemetry_off(row: Row, _: Facts) -> Iterable[Hit]:
    if row.get("is_off"):
        yield Hit(
            "member", "", row["node"], 0, 0,
            "it is up, and its telemetry is switched off: what its clients publish is in no table, "
            "and copies are not judged",
        )  # fmt: skip


def _wrong_clock(row: Row, _: Facts) -> Iterable[Hit]:
    # Tables of hours before the column came do not have it.
    skew_s = row.get("skew_s") or 0.0
    if skew_s:
        where = "ahead of" if skew_s > 0 else "behind"
        yield Hit(
            "member", "", row["node"], skew_s, schema.CLOCK_S_MIN,
            f"its clock was {abs(skew_s):,.0f} s {where} those of the other members; its rows are "
            "kept, with their times put right by as much",
        )  # fmt: skip
        return
    job_skew_s = row.get("job_skew_s")
    if job_skew_s:
        where = "ahead of" if job_skew_s > 0 else "behind"
        yield Hit(
            "member", "", row["node"], job_skew_s, schema.CLOCK_S_MIN,
            f"its clock was {abs(job_skew_s):,.0f} s {where} that of the machine of the job when "
            "the job asked it; one of the two is wrong, and its rows stand as its own clock says",
        )  # fmt: skip


def _bad_telemetry(row: Row, _: Facts) -> Iterable[Hit]:
    whole = row["rows"] + row["bad_rows"]
    if row["bad_rows"] > 0.01 * whole:
        yield Hit(
            "member", "", row["node"], row["bad_rows"] / whole, 0.01,
            f"{row['bad_rows']:,} of {whole:,} rows could not be read",
        )  # fmt: skip


def _stuck_link(row: Row, _: Facts) -> Iterable[Hit]:
    if not row["is_stuck"]:
        return
    minutes = row["stalled_s"] / 60
    if row["state_last"] != "running":
        why = f"it does not run ({row['state_last']}): {row['err_last'] or 'no error was told'}"
    elif row["backlog_last"]:
        why = f"it says that it runs, and {row['backlog_last']:,} messages wait upstream"
    else:
        why = "it says that it runs, and the upstream does not answer"
    yield Hit(
        "link", row["vhost"] or "", row["link"], row["stalled_s"], 300,
        f"nothing has come for {minutes:.0f} min: {why}", upstream=row["upstream"] or "",
    )  # fmt: skip


def _too_few_hops(row: Row, _: Facts) -> Iterable[Hit]:
    # Where messages come back by a ring, hops run out all the time.
    if row["drop_maxhops"] and not row["drop_loop"]:
        yield Hit(
            "link", row["vhost"] or "", row["link"], row["drop_maxhops"], 0,
            f"{row['drop_maxhops']:,} messages had gone their number of hops and were dropped",
            upstream=row["upstream"] or "",
        )  # fmt: skip


def _down_shovel(row: Row, _: Facts) -> Iterable[Hit]:
    if row["state_last"] in ("error", "starting") and not row["running_pct"] and not row["in"]:
        yield Hit(
            "shovel", row["vhost"] or "", row["shovel"] or row["link"], row["running_pct"] or 0, 0,
            f"it does not run ({row['state_last']}): {row['err_last'] or 'no error was told'}",
        )  # fmt: skip


RULES = (
    Rule("DL-LOST", "critical", "deadletter_1h", True,
         "create the dead letter exchange or the binding that is missing", _lost_letters),
    Rule("DL-STUCK", "critical", "queue_1h", True,
         "look at the target queue: is it full, or without a leader?", _stuck_letters),
    Rule("DLX-CYCLE", "warning", "dlx_cycle_1h", True,
         "break the ring: set a delivery-limit, or count x-death and give up", _endless_letters),
    Rule("UNR-DROP", "warning", "unroutable_1h", False,
         "bind a queue for these routing keys, or name an alternate exchange", _unroutable),
    Rule("AE-MISSING", "critical", "unroutable_1h", True,
         "create the exchange that the argument or policy names", _missing_alternate),
    Rule("AE-CYCLE", "warning", "unroutable_1h", False,
         "break the ring of alternate exchanges", _alternate_cycle),
    Rule("POISON", "warning", "queue_1h", True,
         "some message cannot be handled: brokerctl triage shows the dead letters of this queue, "
         "if it has any, and why they died (the table poison_1h tells kinds of messages apart)",
         _poison),
    Rule("LIMIT-DROP", "critical", "queue_1h", True,
         "name a dead letter exchange, or set a delivery-limit (-1: none) by argument, policy or "
         "resource", _default_limit),
    Rule("Q-STOPPED", "critical", "queue_1h", True, "start a consumer", _stopped),
    Rule("Q-UNREAD", "info", "queue_1h", False,
         "start a consumer, or delete the queue if nobody needs it", _never_read),
    Rule("Q-STALLED", "critical", "queue_1h", False,
         "look at the consumers: they hold messages and settle none", _stalled),
    Rule("Q-FULL-1H", "critical", "queue_forecast_1h", True,
         "add consumers, or raise the limit", _fills(0, 3600)),
    Rule("Q-FULL-24H", "warning", "queue_forecast_1h", False,
         "add consumers, or raise the limit", _fills(3600, 86_400)),
    Rule("IDLE", "info", "idle_queues_1h", False,
         "delete the queue, or bring back who used it", _idle),
    Rule("IDLE-EXCHANGE", "info", "idle_exchanges_1h", False,
         "delete the exchange, or bring back who published to it", _idle_exchange),
    Rule("UNBOUND", "info", "idle_exchanges_1h", False,
         "bind a queue, name an alternate exchange, or delete the exchange", _unbound,
         DAY_WINDOWS),
    Rule("POLICY-UNUSED", "info", "policy_coverage_1h", False,
         "mend its pattern, apply-to, priority or keys (a key that a type of queue does not know "
         "keeps it off them), or delete it", _useless_policy, DAY_WINDOWS),
    Rule("CAP", "info", "capacity_1d", False,
         "set the members' memory to the target", _capacity),
    Rule("DISK-FILLS", "warning", "capacity_1d", False,
         "give the member's volume more space, or let messages expire", _disk_fills),
    Rule("DISK-STALLED", "critical", "member_5m", True,
         "look at the member's volume and at what else uses it", _stalled_disk),
    Rule("LEAD-IMBAL", "info", "leader_balance_1h", False,
         "brokerctl rebalance, or move the leaders of its busiest queues", _imbalance),
    Rule("MEM-EPISODE", "warning", "memory_episode", True,
         "give the member more memory, or limit who sends most", _episode),
    Rule("FED-STUCK", "critical", "federation_5m", True,
         "look at the link and its upstream", _stuck_link),
    Rule("FED-HOPS", "warning", "federation_5m", False,
         "raise max-hops of the upstream if these messages were to go further", _too_few_hops),
    Rule("SHOVEL-DOWN", "critical", "shovel_5m", False,
         "look at both ends of the shovel", _down_shovel),
    Rule("CONF-SLO", "warning", "confirm_1h", False,
         "look at disk and network of the queue's leader", _slow_confirms),
    Rule("BOOKS", "critical", "audit_1h", True,
         "please report this: it is a bug of the broker", _books),
    Rule("TELE-LOSS", "warning", "data_quality_1h", True,
         "was this member killed? Otherwise look at its disk", _lost_telemetry),
    Rule("TELE-OFF", "info", "data_quality_1h", True,
         "set telemetry.enabled on this member, or leave it if that is meant", _telemetry_off),
    Rule("TELE-CLOCK", "warning", "data_quality_1h", True,
         "have the clock of its machine set by NTP, and see why it was not", _wrong_clock),
    Rule("TELE-BAD", "warning", "data_quality_1h", True,
         "is the job older than the members? Otherwise look into quarantine/rows", _bad_telemetry),
)  # fmt: skip
BY_ID = {rule.id: rule for rule in RULES}
