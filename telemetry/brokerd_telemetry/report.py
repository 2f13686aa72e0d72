"""report.html: one self-contained page of what the tables say (design/telemetry.md §9).

Findings first, then the books, queues, dead letters, unroutable messages, confirms, memory, links,
usage and the data's own quality.  Everything that came from outside is escaped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import UTC, datetime
from html import escape
from statistics import median
from typing import TYPE_CHECKING, Any

import pyarrow

from brokerd_telemetry import (
    charts,
    page,
    pictures,
    report_declared,
    report_fates,
    report_head,
    schema,
    verify,
)
from brokerd_telemetry.columns import report_sums
from brokerd_telemetry.columns.report_sums import Book

if TYPE_CHECKING:
    from brokerd_telemetry.manifest import Manifest
    from brokerd_telemetry.sinks import Live

Row = dict[str, Any]
Minutes = Callable[[Collection[str]], list[Row]]

#: The report looks back so far; the tables hold more.
HOURS_SHOWN = 24
#: Days after which a disk's growth is a trend, as for DISK-FILLS.
TREND_DAYS = 3
#: Why rows of an equation are not judged.
REASONS_SHOWN = 3
#: What is read of the tables that have a row for each queue and hour, as columns.
_TIME = pyarrow.timestamp("us", "UTC")
AUDIT = pyarrow.schema(
    [
        *((name, pyarrow.string()) for name in ("equation", "vhost", "object")),
        ("window_start", _TIME),
        *((name, pyarrow.int64()) for name in ("expected", "counted", "residual")),
        ("judged", pyarrow.bool_()),
        ("not_judged", pyarrow.string()),
    ]
)
QUEUES = pyarrow.schema(
    [
        ("vhost", pyarrow.string()),
        ("queue", pyarrow.string()),
        ("window_start", _TIME),
        *(
            (name, pyarrow.int64())
            for name in (
                "enq",
                "ack",
                "redlv",
                "dl_out",
                "purged",
                "orphaned",
                *schema.ENDS,
                "ready_last",
                "unacked_last",
            )
        ),
        ("is_gone", pyarrow.bool_()),
    ]
)
FATES = pyarrow.schema(
    [
        *((name, pyarrow.string()) for name in ("kind", "vhost", "object")),
        ("window_start", _TIME),
        *((name, pyarrow.int64()) for name in ("waited", "came", *schema.FATES)),
    ]
)
LETTERS = pyarrow.schema(
    [
        *((name, pyarrow.string()) for name in ("vhost", "queue", "reason", "dlx", "outcome")),
        ("n", pyarrow.int64()),
        ("lost", pyarrow.int64()),
    ]
)
_DEPTHS = ("cluster", "vhost", "queue", "window_start", "ready_max", "ready_last")
_ORDER = {"critical": 0, "warning": 1, "info": 2}


#: What tables call an outcome, in words.
_OUTCOMES = {
    "ae": "to the alternate exchange",
    "ae_routed": "to the alternate exchange",
    "ae_missing": "alternate exchange is missing",
    "ae_cycle": "ring of alternate exchanges",
    "dlx_missing": "dead letter exchange is missing",
    "dropped_no_dlx": "dropped, no dead letter exchange",
    "cycle_dropped": "dropped in a ring",
    "dl_lost": "given up",
}


def render(live: Live, findings: list[Row]) -> bytes:
    """Return the page."""
    manifest = live.manifest
    hours = live.hours("silver")[-HOURS_SHOWN:]

    def rows(table: str) -> list[Row]:
        return live.rows(table, hours)

    def minutes(names: Collection[str]) -> list[Row]:
        """Return how many messages waited in queues of these names; of all it would be too much."""
        return live.rows("queue_1m", hours, _DEPTHS, ("queue", names))

    newest = [hour for hour in live.hours("consumer_use_1h") if hour in hours][-1:]
    queues = report_sums.queues(live.columns("queue_1h", hours, QUEUES))
    audit = live.columns("audit_1h", hours, AUDIT)
    books = report_sums.books(audit, page.ROWS_SHOWN)
    letters = report_sums.letters(live.columns("deadletter_1h", hours, LETTERS))
    quality, unroutable, usage = rows("data_quality_1h"), rows("unroutable_1h"), rows("usage_1h")
    fates_of = report_sums.fates(live.columns("fates_1h", hours, FATES))
    clusters = sorted({row["cluster"] for row in quality}) or [manifest.cluster]
    sections = [
        ("findings", "Findings", _findings(findings)),
        ("time", "What stood still", _standstill(rows, hours)),
        ("books", "The books", _books(books)),
        ("fates", "What became of messages", report_fates.section(fates_of)),
        ("queues", "Queues", _queues(report_sums.folded(queues), minutes, rows("flow_10s"))),
        ("limits", "Queues that fill up", _limits(minutes, rows, hours)),
        ("consumers", "Consumers", _consumers(live.rows("consumer_use_1h", newest))),
        ("letters", "Dead letters", _dead_letters(letters, rows("dlx_graph_1h"))),
        ("poison", "Messages that were given up", _poison(rows("poison_1h"))),
        ("unroutable", "Unroutable and alternate exchanges", _unroutable(unroutable)),
        ("exchanges", "Idle exchanges", report_declared.exchanges(rows("idle_exchanges_1h"))),
        ("policies", "Policies", report_declared.policies(rows("policy_coverage_1h"))),
        ("confirms", "Publisher confirms", _confirms(rows("confirm_1h"))),
        ("memory", "Memory episodes", _memory(rows("memory_episode"))),
        ("blocked", "Who was blocked", _blocked(rows("blocked_1h"))),
        ("parts", "What memory is used for", _memory_parts(rows("memory_parts_5m"))),
        ("capacity", "Capacity", _capacity(live, hours)),
        ("links", "Federation", _links(rows("federation_5m"))),
        ("shovels", "Shovels", _shovels(rows("shovel_5m"))),
        ("usage", "Usage", _usage(usage)),
        ("quality", "How complete this is", _quality(quality, manifest, clusters)),
    ]
    fates = report_head.fates(
        usage,
        unroutable,
        letters,
        report_sums.gone(queues),
        report_sums.purged(queues),
        report_sums.acknowledged(queues),
    )
    absent = manifest.run.get("absent", {})
    silent = {name: why for key in ("", *clusters) for name, why in absent.get(key, {}).items()}
    unseen = report_head.unseen(quality, silent)
    head = report_head.head(
        clusters=", ".join(clusters),
        hours=hours,
        findings=findings,
        found=fates,
        books=books.values(),
        quality=quality,
        unseen=unseen,
        unreported=report_sums.unreported(audit),
        until_us=manifest.as_of_us(clusters),
    )
    return page.document(", ".join(clusters), head, sections, manifest.run_id)


def _findings(findings: list[Row]) -> str:
    def rank(item: Row) -> tuple[int, bool, str]:
        return _ORDER[item["severity"]], item["status"] == "PENDING", item["rule"]

    ordered = sorted(findings, key=rank)
    now = [item for item in ordered if item["status"] != "CLEAR"]
    over = [item for item in ordered if item["status"] == "CLEAR"]
    text = "".join(map(card, now[: page.ROWS_SHOWN])) or page.nothing(
        "Nothing is raised now." if over else "Nothing to report."
    )
    if len(now) > page.ROWS_SHOWN:
        text += f'<p class="more">and {len(now) - page.ROWS_SHOWN:,} more in the table</p>'
    if over:
        cards = "".join(map(card, over[: page.ROWS_SHOWN]))
        text += f"<details><summary>{len(over):,} clear again</summary>{cards}</details>"
    return text


def card(item: Row) -> str:
    return (
        f'<article class="finding {escape(item["severity"])} {escape(item["status"].lower())}">'
        f"<h3><code>{escape(item['rule'])}</code> {escape(_place(item))}"
        f'<span class="status">{escape(item["status"].lower())} since '
        f"{item['since']:%Y-%m-%d %H:%M}</span></h3>"
        f'<p>{escape(item["message"])}</p><p class="action">{escape(item["action"])}</p>'
        f'<p class="more">figure {item["value"]:g}, threshold {item["threshold"]:g}, table '
        f"<code>{escape(item['evidence'])}</code></p>"
        "</article>"
    )


def _place(item: Row) -> str:
    """Return in words what a finding is about."""
    kind, name, vhost = item["object_type"], item["object"], item["vhost"]
    if kind == "exchange":
        what = _exchange(name) if not name else f"exchange {name}"
    else:
        what = f"{kind.replace('_', ' ')} {name}"
    return f"{what} in vhost {vhost}" if vhost and kind != "vhost" else what


def _exchange(name: str) -> str:
    return name or "(default exchange)"


def _books(books: dict[str, Book]) -> str:
    names = {
        "queue": "depth of each queue = enqueued − acknowledged − removed",
        "letters": "dead letters handed over = confirmed + lost + pending",
        "exchange": "each message into an exchange has exactly one outcome",
        "copies": "copies made by exchanges = enqueued + refused, but for what is on its way",
        "rows": "what single leaders tell of what queues took; a new one does not repeat the last "
        "one's, and no total needs it",
    }
    lines, details = [], []
    for equation, meaning in names.items():
        book = books.get(equation, Book(0, 0, 0, 0, 0, []))
        verdict = page.badge("balanced", "good") if book.judged and not book.off else ""
        if book.off:
            verdict = page.badge(f"off by {book.off:,}", "bad")
        if not book.rows:
            verdict = page.badge("nothing to judge", "dim")
        elif book.judged < book.rows:
            verdict += page.badge("not judged", "dim") + escape(_why_not(book))
        judged = f"{book.judged} of {book.rows}"
        lines.append((equation, meaning, judged, f"{book.counted:,}", verdict))
        details.append(_book(equation, book))
    heads = ("equation", "what must hold", "judged", "counted", "")
    return page.table(heads, lines, raw=(4,), right=(2, 3)) + "".join(details)


def _why_not(book: Book) -> str:
    """Return why rows of an equation are not judged."""
    more = len(book.why_not) - REASONS_SHOWN
    rest = f" and {more:,} more reasons" if more > 0 else ""
    return "; ".join(book.why_not[:REASONS_SHOWN]) + rest


def _book(equation: str, book: Book) -> str:
    """Return the rows of an equation to be opened."""
    if not book.rows:
        return ""
    lines = [
        (
            row["object"] or row["vhost"] or "", row["vhost"] or "",
            f"{row['window_start']:%m-%d %H:%M}", f"{row['expected']:,}", f"{row['counted']:,}",
            f"{row['residual']:,}"
            if row["judged"]
            else f"not judged: {row['not_judged'] or 'the hour is not complete'}",
        )
        for row in book.shown
    ]  # fmt: skip
    heads = ("object", "vhost", "hour", "expected", "counted", "residual")
    table = page.table(heads, lines, right=(3, 4, 5), of=book.rows)
    return f"<details><summary>{escape(equation)}: {book.rows:,} rows</summary>{table}</details>"


def _standstill(rows: Callable[[str], list[Row]], hours: list[str]) -> str:
    if not hours:
        return page.empty("There is no hour to show.")
    found = pictures.timeline_rows(
        rows("memory_episode"), rows("blocked_1h"), rows("federation_5m")
    )
    start_s = schema.hour_start_us(hours[0]) / 1e6
    end_s = (schema.hour_start_us(hours[-1]) + schema.HOUR_US) / 1e6
    drawn = pictures.bands(found, start_s, end_s)
    return drawn or page.nothing("No alarm, no blocked client; there is no federation link.")


def _limits(minutes: Minutes, rows: Callable[[str], list[Row]], hours: list[str]) -> str:
    forecasts, scores = rows("queue_forecast_1h"), rows("forecast_score_1h")
    until_us = schema.hour_start_us(hours[-1]) + schema.HOUR_US if hours else 0
    drawn = pictures.depths(minutes, forecasts, until_us / 1e6)
    drawn = drawn or page.nothing("No queue with a limit will be full within two days.")
    if not scores:
        return f"{drawn}<p>No forecast is old enough to be graded.</p>"
    off = median(abs(row["error"]) for row in scores)
    outcomes = [row["outcome"] for row in scores]
    reported = ", ".join(
        f"{outcomes.count(name)} {meaning}"
        for name, meaning in (("hit", "right"), ("false", "false alarms"), ("missed", "missed"))
        if name in outcomes
    )
    count = f"{len(scores):,} forecast{'s' if len(scores) > 1 else ''}"
    text = f"{count} graded an hour later: {off:.1%} of the limit off in the median"
    return f"{drawn}<p>{text}{f'; of those that said full, {reported}' if reported else ''}.</p>"


def _consumers(rows: list[Row]) -> str:
    if not rows:
        return page.empty("No queue had a consumer when an interval ended.")
    newest = max(row["window_start"] for row in rows)
    last = [row for row in rows if row["window_start"] == newest]
    lines = [
        (
            row["queue"], row["vhost"], f"{row['consumers_max']:,}",
            charts.bar(row["consumer_capacity"], "b1"), f"{row['consumer_capacity']:.0%}",
            f"{row['full_s']:.0f} s",
            "–" if row["rate_each"] is None else f"{row['rate_each']:.2f}/s",
            "–" if row["consumers_needed"] is None else f"{row['consumers_needed']:,}",
        )
        for row in sorted(last, key=lambda row: (row["consumer_capacity"], -row["enq"]))
    ]  # fmt: skip
    heads = ("queue", "vhost", "consumers", "", "capacity", "prefetch used up", "each settles",
             "needed")  # fmt: skip
    note = (
        f"<p>{newest:%Y-%m-%d %H}h: capacity is the share of the time in which no message waited "
        "for its consumers.</p>"
    )
    return note + page.table(heads, lines, raw=(3,), right=(2, 4, 5, 6, 7))


def _blocked(rows: list[Row]) -> str:
    if not rows:
        return page.nothing("No client was blocked.")
    sums: dict[tuple[str, str, str, str], list[float]] = {}
    for row in rows:
        key = (row["user"], row["vhost"] or "", row["cause"] or "", row["mode"] or "")
        entry = sums.setdefault(key, [0, 0.0, 0.0])
        entry[0] += row["times"]
        entry[1] += row["blocked_s"]
        entry[2] = max(entry[2], row["longest_s"])
    top = max(entry[1] for entry in sums.values()) or 1
    lines = [
        (*key, f"{times:,}", f"{blocked_s:,.1f} s", charts.bar(blocked_s / top, "b2"),
         f"{longest_s:,.1f} s")
        for key, (times, blocked_s, longest_s) in sorted(
            sums.items(), key=lambda item: -item[1][1]
        )
    ]  # fmt: skip
    heads = ("user", "vhost", "for", "how", "times", "altogether", "", "longest")
    return page.table(heads, lines, raw=(6,), right=(4, 5, 7))


def _capacity(live: Live, hours: list[str]) -> str:
    days = sorted({f"{hour[:10]}T00" for hour in hours})[-1:]
    rows = live.rows("capacity_1d", days)
    if not rows:
        return page.empty("It is not known how much memory the members have.")
    kinds = {"ok": "good", "grow": "bad", "shrink": "dim", "not_enough_data": "dim"}

    def size(value: float | None) -> str:
        return "–" if value is None else f"{charts.short(value)}B"

    lines = [
        (
            row["node"], size(row["memory_limit"]), size(row["memory_p95"]),
            size(row["memory_peak"]), size(row["memory_target"]), row["capped_by"] or "",
            page.badge(row["verdict"].replace("_", " "), kinds[row["verdict"]]),
            # Of some minutes a growth by the day is a guess.
            "–"
            if row["disk_days_left"] is None or row["days"] < TREND_DAYS
            else f"{row['disk_days_left']:.1f} days",
            f"{row['days']}",
        )
        for row in sorted(rows, key=lambda row: row["node"])
    ]  # fmt: skip
    heads = ("member", "memory", "95 % under", "peak", "recommended", "held by", "", "disk lasts",
             "days seen")  # fmt: skip
    return page.table(heads, lines, raw=(6,), right=(1, 2, 3, 4, 7, 8))


def _queues(queues: pyarrow.Table, minutes: Minutes, flow: list[Row]) -> str:
    if not len(queues):
        return page.empty("There is no row of a queue.")
    chart = charts.flow(flow, ("published", "enq", "ack"),
                        ("published by clients", "enqueued", "acknowledged"))  # fmt: skip
    shown = queues[: page.ROWS_SHOWN].to_pylist()
    per_queue: dict[tuple[str, str], dict[Any, int]] = {}
    for row in minutes({total["queue"] for total in shown}):
        depths = per_queue.setdefault((row["vhost"], row["queue"]), {})
        depths[row["window_start"]] = row["ready_max"]

    def drawn(total: Row) -> str:
        depths = sorted(per_queue.get((total["vhost"], total["queue"]), {}).items())
        return charts.sparkline([depth for _, depth in depths], f"depth of {total['queue']}")

    def now(total: Row) -> tuple[str, str]:
        """One that is gone has no now."""
        if total["is_gone"]:
            return "gone", "gone"
        return f"{total['ready_last']:,}", f"{total['unacked_last']:,}"

    numbers = ("enq", "ack", "redlv", "dl_out")
    lines = [
        (
            total["queue"] if total["queues"] == 1
            else f"{total['queue']} ({total['queues']:,} queues)",
            total["vhost"], *(f"{total[name]:,}" for name in numbers),
            f"{sum(total[name] or 0 for name in schema.ENDS):,}", *now(total), drawn(total),
        )
        for total in shown
    ]  # fmt: skip
    heads = ("queue", "vhost", "enqueued", "acked", "redelivered", "dead-lettered", "went with it",
             "ready now", "unacked now", "ready, by minute")  # fmt: skip
    return chart + page.table(heads, lines, raw=(9,), right=range(2, 9), of=len(queues))


def _in_words(outcome: str) -> str:
    return _OUTCOMES.get(outcome, outcome)


def _dead_letters(rows: list[Row], graph: list[Row]) -> str:
    if not rows:
        return page.nothing("No message was dead-lettered or dropped by a queue.")
    sums: dict[tuple[str, str, str, str, str], list[int]] = {}
    for row in rows:
        outcome = _in_words(row["outcome"])
        key = (row["queue"], row["vhost"], row["reason"], outcome, row["dlx"] or "–")
        entry = sums.setdefault(key, [0, 0])
        entry[0] += row["n"]
        entry[1] += row["lost"]
    top = max(entry[0] for entry in sums.values())
    lines = [
        (*key, f"{n:,}", charts.bar(n / top, "b2"), f"{lost:,}" if lost else "")
        for key, (n, lost) in sorted(sums.items(), key=lambda item: -item[1][0])
    ]
    heads = ("queue", "vhost", "reason", "outcome", "dead letter exchange", "messages", "", "lost")
    return pictures.sankey(pictures.flows(rows, graph)) + page.table(
        heads, lines, raw=(6,), right=(5, 7)
    )


def _poison(rows: list[Row]) -> str:
    if not rows:
        return page.nothing("No message was given up for a delivery limit.")
    sums: dict[tuple[str, str, str, str], list[int]] = {}
    for row in rows:
        key = (row["queue"], row["vhost"], row["fp"] or "not looked at", row["ended"] or "")
        entry = sums.setdefault(key, [0, 0, 0])
        entry[0] += row["n"] or 0
        entry[1] = max(entry[1], row["tries_max"])
        entry[2] += row["redeliveries"] or 0
    lines = [
        (*key, f"{n:,}", f"{tries:,}", f"{redeliveries:,}")
        for key, (n, tries, redeliveries) in sorted(sums.items(), key=lambda item: -item[1][2])
    ]
    heads = ("queue", "vhost", "fingerprint", "letters", "messages", "tries at the most",
             "redeliveries")  # fmt: skip
    return page.table(heads, lines, right=(4, 5, 6))


def _unroutable(rows: list[Row]) -> str:
    if not rows:
        return page.nothing("Every message found a queue by its exchange's own bindings.")
    keys: dict[tuple[str, str, str, str, str], int] = {}
    exchanges: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        if row["outcome"] == "all":
            entry = exchanges.setdefault((_exchange(row["exchange"]), row["vhost"]), [0, 0, 0])
            entry[0] += row["in"] + row["internal_in"]
            entry[1] += row["ae_routed"]
            entry[2] += row["n"] - row["ae_routed"]
        else:
            outcome = _in_words(row["outcome"])
            key = (
                _exchange(row["exchange"]), row["vhost"], row["rk"], row["user"] or "", outcome,
            )  # fmt: skip
            keys[key] = keys.get(key, 0) + row["n"]
    summary = page.table(
        ("exchange", "vhost", "in", "caught by an alternate exchange", "found no queue"),
        [(*names, *(f"{n:,}" for n in counts)) for names, counts in sorted(exchanges.items())],
        right=(2, 3, 4),
    )
    lines = [(*key, f"{n:,}") for key, n in sorted(keys.items(), key=lambda item: -item[1])]
    detail = page.table(
        ("exchange", "vhost", "routing key", "user", "outcome", "messages"), lines, right=(5,)
    )
    return summary + (detail if lines else "")


def _confirms(rows: list[Row]) -> str:
    if not rows:
        return page.empty("No client published with confirms.")
    top = max(row["p99_us"] or 0 for row in rows) or 1
    lines = [
        (
            _exchange(row["exchange"]), row["user"], f"{row['window_start']:%m-%d %H:%M}",
            f"{row['n']:,}",
            # A bucket's middle may lie beyond the largest that was in it.
            *(
                _milliseconds(None if row[name] is None else min(row[name], row["max_us"]))
                for name in ("p50_us", "p95_us", "p99_us", "p999_us", "max_us")
            ),
            charts.bar((row["p99_us"] or 0) / top, "b3"),
        )
        for row in sorted(rows, key=lambda row: (row["window_start"], -row["n"]), reverse=True)
    ]  # fmt: skip
    heads = ("exchange", "user", "hour", "confirms", "p50", "p95", "p99", "p99.9", "max", "p99")
    return page.table(heads, lines, raw=(9,), right=range(3, 9))


def _memory(rows: list[Row]) -> str:
    if not rows:
        return page.nothing("No member was short of memory.")
    lines = [
        (
            row["node"], f"{datetime.fromtimestamp(row['start_us'] / 1e6, UTC):%m-%d %H:%M:%S}",
            f"{row['duration_s']:.1f} s", f"{charts.short(row['peak_rss'] or 0)}B",
            f"{charts.short(row['limit_bytes'] or 0)}B", f"{row['blocked_conn_s']:.1f} s",
            ", ".join(row["users"] or ()) or "–",
            ", ".join(f"{item['user']} {item['share']:.0%}" for item in row["blame"] or ()) or "–",
        )
        for row in sorted(rows, key=lambda row: row["start_us"])
    ]  # fmt: skip
    heads = ("member", "from", "for", "used", "limit", "connections blocked", "who was blocked",
             "who sent most before")  # fmt: skip
    return page.table(heads, lines, right=(2, 3, 4, 5))


def _memory_parts(rows: list[Row]) -> str:
    """Return a line per part, a column per member: the newest figure, and the highest."""
    if not rows:
        return page.empty("It is not known what members use memory for.")
    last: dict[tuple[str, str], int] = {}
    highest: dict[tuple[str, str], int] = {}
    for row in sorted(rows, key=lambda row: row["window_start"]):
        key = (row["node"], row["part"])
        last[key] = row["bytes_last"]
        highest[key] = max(highest.get(key, 0), row["bytes_max"])
    members = sorted({node for node, _ in last})
    sums = {part: sum(last.get((node, part), 0) for node in members) for _, part in last}
    parts = sorted(sums, key=lambda part: (-sums[part], part))

    def cell(node: str, part: str) -> str:
        if (node, part) not in last:
            return "–"
        return f"{charts.short(last[node, part])}B ≤ {charts.short(highest[node, part])}B"

    lines = [
        ("all together", *(
            f"{charts.short(sum(last.get((node, part), 0) for part in parts))}B" for node in members
        )),
        *((part.replace("_", " "), *(cell(node, part) for node in members)) for part in parts),
    ]  # fmt: skip
    # Parts are many and members few: it is read from top to bottom.
    heads = ("part", *members)
    return page.table(heads, lines, right=range(1, len(heads)), shown=len(lines))


def _links(rows: list[Row]) -> str:
    if not rows:
        return page.empty("There is no federation link.")
    last = {row["link"]: row for row in sorted(rows, key=lambda row: row["window_start"])}
    lines = [
        (
            name, row["upstream"] or "", row["state_last"] or "",
            f"{sum(item['in'] for item in rows if item['link'] == name):,}",
            "–" if row["backlog_last"] is None else f"{row['backlog_last']:,}", _lag(row),
            f"{row['running_pct'] or 0:.0f} %",
            f"{row['reconnects']:,}", row["err_last"] or "",
        )
        for name, row in sorted(last.items())
    ]  # fmt: skip
    heads = ("link", "upstream", "state", "messages", "backlog", "behind", "running",
             "reconnects", "error")  # fmt: skip
    return page.table(heads, lines, right=(3, 4, 5, 6, 7))


def _lag(row: Row) -> str:
    """Return how far a link is behind: since when nothing came, or by stamps, or by its rate."""
    if row.get("stalled_last_s"):
        return f"{row['stalled_last_s']:.0f} s, nothing comes"
    if row.get("lag_mean_ms") is not None:
        return f"{row['lag_mean_ms']:.0f} ms"
    return "–" if row.get("lag_est_s") is None else f"≈ {row['lag_est_s']:.1f} s"


def _shovels(rows: list[Row]) -> str:
    if not rows:
        return page.empty("There is no shovel.")
    last = {row["link"]: row for row in sorted(rows, key=lambda row: row["window_start"])}

    def end(uri: str | None, queue: str | None, exchange: str | None) -> str:
        return f"{uri or ''} {queue or exchange or ''}".strip()

    lines = [
        (
            row["shovel"] or "", row["vhost"] or "",
            end(row["remote"], row["queue"], row["exchange"]),
            end(row["dest"], row["dest_queue"], row["dest_exchange"]), row["state_last"] or "",
            f"{sum(item['moved'] for item in rows if item['link'] == name):,}",
            f"{sum(item['refused'] for item in rows if item['link'] == name):,}",
            f"{row['running_pct'] or 0:.0f} %", f"{row['reconnects']:,}", row["err_last"] or "",
        )
        for name, row in sorted(last.items())
    ]  # fmt: skip
    heads = ("shovel", "vhost", "from", "to", "state", "moved", "refused", "running",
             "reconnects", "error")  # fmt: skip
    return page.table(heads, lines, right=(5, 6, 7, 8))


def _usage(rows: list[Row]) -> str:
    if not rows:
        return page.empty("No client published or consumed.")
    names = ("in", "in_bytes", "out", "out_bytes", "confirmed", "redlv", "blocked_ms")
    sums: dict[tuple[str, str], dict[str, int]] = {}
    for row in rows:
        if row["user"]:
            entry = sums.setdefault((row["user"], row["vhost"]), dict.fromkeys(names, 0))
            for name in names:
                entry[name] += row[name]
    lines = [
        (
            user, vhost, f"{entry['in']:,}", f"{charts.short(entry['in_bytes'])}B",
            f"{entry['out']:,}", f"{charts.short(entry['out_bytes'])}B",
            f"{entry['confirmed']:,}", f"{entry['redlv']:,}", f"{entry['blocked_ms'] / 1000:.1f} s",
        )
        for (user, vhost), entry in sorted(sums.items(), key=lambda item: -item[1]["in_bytes"])
    ]  # fmt: skip
    heads = ("user", "vhost", "in", "bytes in", "out", "bytes out", "confirmed", "redelivered",
             "blocked")  # fmt: skip
    return page.table(heads, lines, right=range(2, 9))


def _quality(rows: list[Row], manifest: Manifest, clusters: list[str]) -> str:
    lines = [
        (
            row["node"], row["boot"][-8:], f"{row['window_start']:%m-%d %H:%M}",
            f"{row['rows']:,}", f"{row['gap_rows']:,}", f"{row['bad_rows']:,}",
            f"{row['missing_s']:.1f} s", charts.bar(row["completeness"]),
            f"{row['completeness']:.1%}", (row.get("why") or "").removeprefix(f"{row['node']} "),
        )
        for row in sorted(rows, key=lambda row: (row["window_start"], row["node"]), reverse=True)
    ]  # fmt: skip
    heads = ("member", "boot", "hour", "rows", "lost rows", "bad rows", "not told", "", "complete",
             "what is missing")  # fmt: skip
    run = manifest.run
    last = (
        f"<p>This run: {run.get('segments', 0):,} segments, {run.get('rows', 0):,} rows, "
        f"{run.get('quarantined', 0)} segments and {run.get('bad_rows', 0)} rows quarantined.</p>"
    )
    last += _refused(run.get("rejected", ()), set(manifest.clusters()) - set(clusters))
    return last + page.table(heads, lines, raw=(7,), right=(3, 4, 5, 6, 8))


def _refused(
    rejected: Collection[str] | dict[str, tuple[str, str]], others: Collection[str]
) -> str:
    """Return the segments that are not taken, by name.  others: clusters whose own pages name
    theirs.
    """
    whys = rejected if isinstance(rejected, dict) else dict.fromkeys(rejected, ("", ""))
    others = {verify.cluster_folder(name) for name in others}
    whys = {path: why for path, why in whys.items() if path.partition("/")[0] not in others}
    if not whys:
        return ""
    names = "; ".join(
        f"{path} ({reason})" if reason else path
        for path, (_, reason) in sorted(whys.items())[: page.ROWS_SHOWN]
    )
    more = len(whys) - page.ROWS_SHOWN
    rest = f" and {more:,} more" if more > 0 else ""
    return f'<p class="more">Segments that could not be taken: {escape(names)}{rest}.</p>'


def _milliseconds(value_us: float | None) -> str:
    return "–" if value_us is None else f"{value_us / 1000:.1f} ms"
