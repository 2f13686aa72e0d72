"""The gold tables a second time, by DuckDB from the raw segments: what Spark says must equal it.

Written against the definitions of design/telemetry.md §8, not against the job's code.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb

_HOUR = "t0 - t0 % 3600000000"
_LEFT = (
    "ack", "rejected", "expired", "maxlen_drop", "over_limit", "orphaned", "purged", "job_out",
)  # fmt: skip
_OUT = f"({' + '.join(_LEFT)})"
_COUNTED = (
    *_LEFT, "enq", "enq_bytes", "dlv", "dl_out", "dl_confirmed", "dl_lost", "redlv",
)  # fmt: skip
#: What queues tell, where it is not 0.
_NUMBERS = (
    *_COUNTED, *(f"c_{name}" for name in _COUNTED), "ready", "unacked", "consumers",
    "prefetch_sum", "dl_pending",
)  # fmt: skip
_COUNTERS = ("enq", "dlv", "ack", "rejected", "over_limit", "dl_out", "dl_confirmed")


def _sum(counts: str) -> str:
    """Return SQL for the sum of an object's counts."""
    text = f"to_json({counts})"
    each = f"list_transform(json_keys({text}), lambda name: coalesce(({text}->>name)::BIGINT, 0))"
    return f"coalesce(list_sum({each}), 0)::BIGINT"


class Oracle:
    """The rows of a directory of segments, with SQL over them."""

    def __init__(self, raw: Path, cluster: str, database: Path | None = None) -> None:
        """database: where it is kept if it may be more than fits into memory."""
        self.db = duckdb.connect(":memory:" if database is None else database)
        files = str(raw / "raw" / "v1" / f"cluster={cluster.replace('/', '+')}" / "**" / "*.gz")
        self._load("rows", files, "k NOT LIKE '\\_%' ESCAPE '\\'")
        self._load("named", files, "k IN ('queue', 'node', 'throttle')")

    def _load(self, table: str, files: str, wanted: str) -> None:
        """Read segments; a number that a queue's row does not have is 0."""
        self.db.execute(
            "CREATE TABLE told AS SELECT * EXCLUDE (filename), "
            "regexp_extract(filename, '/node=([^/]+)/', 1) AS member "
            "FROM read_json($1, format = 'newline_delimited', filename = true, "
            "hive_partitioning = false, union_by_name = true, sample_size = -1, "
            f"ignore_errors = true) WHERE {wanted}",
            [files],
        )
        there = {name for name, *_ in self.db.execute("DESCRIBE told").fetchall()}
        known = ", ".join(there & set(_NUMBERS))
        filled = ", ".join(
            f"coalesce({name}, 0) AS {name}" if name in there else f"0::BIGINT AS {name}"
            for name in _NUMBERS
        )
        self.db.execute(
            f"CREATE TABLE {table} AS SELECT *, {_OUT.replace('(', '(c_').replace('+ ', '+ c_')} "
            f"AS c_out FROM (SELECT * EXCLUDE ({known}), {filled} FROM told)"
        )
        self.db.execute("DROP TABLE told")

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query, in order."""
        return sorted(self.db.execute(sql).fetchall(), key=str)

    def queue_hours(self) -> list[tuple[Any, ...]]:
        """(hour, queue, each counter, last ready): differences of cumulative counters."""
        deltas = ", ".join(
            f"CASE WHEN lag(c_{name}) OVER w IS NULL THEN {name} "
            f"ELSE c_{name} - lag(c_{name}) OVER w END AS s_{name}"
            for name in _COUNTERS
        )
        sums = ", ".join(f"sum(s_{name})::BIGINT" for name in _COUNTERS)
        return self.query(
            f"WITH s AS (SELECT *, {deltas} FROM rows WHERE k = 'queue' "
            "WINDOW w AS (PARTITION BY grp ORDER BY term, t1, c_enq, c_ack, seq)) "
            f"SELECT {_HOUR} AS hour, queue, {sums}, "
            "arg_max(ready, t1)::BIGINT, max(ready)::BIGINT FROM s GROUP BY 1, 2"
        )

    def exchange_hours(self) -> list[tuple[Any, ...]]:
        """(hour, exchange, unroutable ratio, catch ratio)."""
        astray = "sum(returned + dropped + ae_missing + ae_cycle)"
        return self.query(
            f'SELECT {_HOUR}, exchange, {astray} / sum("in" + internal_in), '
            f"sum(ae_routed) / (sum(ae_routed) + {astray}) "
            "FROM rows WHERE k = 'exchange' GROUP BY 1, 2"
        )

    def confirm_hours(self) -> list[tuple[Any, ...]]:
        """(hour, exchange, user, n, p50, p99, max) from the merged buckets."""
        return self.query(
            f"""
            WITH b AS (SELECT {_HOUR} AS hour, exchange, "user", unnest(total.i) AS i,
                              unnest(total.c) AS c FROM rows WHERE k = 'confirm'),
            m AS (SELECT hour, exchange, "user", i, sum(c) AS c FROM b GROUP BY ALL),
            r AS (SELECT *, sum(c) OVER (PARTITION BY hour, exchange, "user" ORDER BY i) AS seen,
                         sum(c) OVER (PARTITION BY hour, exchange, "user") AS everything FROM m),
            p AS (SELECT hour, exchange, "user",
                         min(CASE WHEN seen >= 0.5 * everything THEN i END) AS i50,
                         min(CASE WHEN seen >= 0.99 * everything THEN i END) AS i99
                  FROM r GROUP BY ALL),
            n AS (SELECT {_HOUR} AS hour, exchange, "user", sum(n)::BIGINT AS n,
                         max(total.max_us) AS top FROM rows WHERE k = 'confirm' GROUP BY ALL)
            SELECT hour, exchange, "user", n, 2 * pow(1.02, i50) / 2.02,
                   2 * pow(1.02, i99) / 2.02, top
            FROM p JOIN n USING (hour, exchange, "user")
            """
        )

    def usage_hours(self) -> list[tuple[Any, ...]]:
        """(hour, user, in, in_bytes, confirmed)."""
        return self.query(
            f'SELECT {_HOUR}, "user", sum("in")::BIGINT, sum(in_bytes)::BIGINT, '
            "sum(confirmed)::BIGINT FROM rows WHERE k = 'principal' GROUP BY 1, 2"
        )

    def forecasts(self) -> list[tuple[Any, ...]]:
        """(hour, queue, level, quarters, net per second, seconds to full, at the most, least)."""
        return self.query(
            f"""
            WITH s AS (SELECT * REPLACE (vhost || ' ' || queue AS queue), {_HOUR} AS hour,
                    t0 // 900000000 AS q,
                    c_enq - coalesce(lag(c_enq) OVER w, c_enq - enq) AS came,
                    c_out - coalesce(lag(c_out) OVER w, c_out - {_OUT}) AS went
                 FROM rows WHERE k = 'queue'
                 WINDOW w AS (PARTITION BY grp ORDER BY term, t1, c_enq, c_ack, seq)),
            quarters AS (SELECT hour, queue, q, sum(came - went) AS net,
                    arg_max(ready + dl_pending, (term, t1)) AS level, max(max_len) AS most
                 FROM s GROUP BY ALL),
            hours AS (SELECT hour, queue, sum(net) AS net, count(*) AS n,
                    count(*) FILTER (net > 0) AS grown, max(net) AS fast,
                    min(net) FILTER (net > 0) AS slow, arg_max(level, q) AS level, max(most) AS most
                 FROM quarters GROUP BY ALL)
            SELECT hour, queue, level::BIGINT, n::BIGINT, net / (n * 900.0),
                   greatest(most - level, 0) * n * 900.0 / net,
                   greatest(most - level, 0) * 900.0 / fast,
                   greatest(most - level, 0) * 900.0 / slow
            FROM hours WHERE most IS NOT NULL AND net > 0 AND grown >= 3
            """
        )

    def scores(self) -> list[tuple[Any, ...]]:
        """(hour, queue, level at its end, expected, error, outcome) of the forecasts before."""
        forecasts = "(VALUES " + ", ".join(map(str, self.forecasts())) + ")"
        return self.query(
            f"""
            WITH f(hour, queue, level, n, net, ttf, ttf_lo, ttf_hi) AS (SELECT * FROM {forecasts}),
            q AS (SELECT {_HOUR} AS hour, vhost || ' ' || queue AS queue,
                    arg_max(ready + dl_pending, (term, t1))::BIGINT AS level,
                    max(ready + dl_pending) AS top FROM rows WHERE k = 'queue' GROUP BY ALL),
            m AS (SELECT {_HOUR} AS hour, vhost || ' ' || queue AS queue, max(max_len) AS most
                 FROM rows WHERE k = 'queue' GROUP BY ALL),
            e AS (SELECT q.*, f.ttf, f.ttf_lo, m.most, least(f.level + f.net * 3600, m.most) AS told
                 FROM f JOIN m USING (hour, queue)
                 JOIN q ON q.queue = f.queue AND q.hour = f.hour + 3600000000)
            SELECT hour, queue, level, told, (told - level) / most,
                   CASE WHEN ttf <= 3600 AND top >= most THEN 'hit' WHEN ttf <= 3600 THEN 'false'
                        WHEN ttf_lo > 3600 AND top >= most THEN 'missed' ELSE 'open' END FROM e
            """
        )

    def idle(self) -> list[tuple[Any, ...]]:
        """(hour, queue, ready, idle_in_s, idle_out_s) of queues that nothing left for an hour."""
        return self.query(
            f"""
            WITH s AS (SELECT *, vhost || ' ' || queue AS q,
                    c_enq - coalesce(lag(c_enq) OVER w, c_enq - enq) AS came,
                    c_out - coalesce(lag(c_out) OVER w, c_out - {_OUT})
                    + c_dlv - coalesce(lag(c_dlv) OVER w, c_dlv - dlv) AS went
                 FROM rows WHERE k = 'queue'
                 WINDOW w AS (PARTITION BY grp ORDER BY term, t1, c_enq, c_ack, seq)),
            hours AS (SELECT DISTINCT {_HOUR} AS hour FROM rows),
            ends AS (SELECT {_HOUR} AS hour,
                    least(max(t1), min({_HOUR}) + 3600000000) AS until FROM rows GROUP BY 1),
            l AS (SELECT hour, q, arg_max(ready, (term, t1))::BIGINT AS ready, max(t1) AS told,
                    max(t1) FILTER (came > 0) AS c, max(t1) FILTER (went > 0) AS g,
                    min(t0) AS since
                 FROM s JOIN hours h ON s.t0 < h.hour + 3600000000 GROUP BY ALL)
            SELECT hour, q, ready, (until - coalesce(c, since)) / 1e6,
                   (until - coalesce(g, since)) / 1e6
            FROM l JOIN ends USING (hour)
            WHERE told > hour AND until - coalesce(g, since) >= 3600000000
            """
        )

    def consumers(self) -> list[tuple[Any, ...]]:
        """(hour, queue, seconds with consumers, of these with messages, capacity, rate, needed)."""
        return self.query(
            f"""
            WITH s AS (SELECT *, vhost || ' ' || queue AS q,
                    (t1 - coalesce(lag(t1) OVER w, t0)) / 1e6 AS span,
                    c_enq - coalesce(lag(c_enq) OVER w, c_enq - enq) AS came,
                    c_ack - coalesce(lag(c_ack) OVER w, c_ack - ack) AS done
                 FROM rows WHERE k = 'queue'
                 WINDOW w AS (PARTITION BY grp ORDER BY term, t1, c_enq, c_ack, seq)),
            h AS (SELECT {_HOUR} AS hour, q,
                    coalesce(sum(span) FILTER (consumers > 0), 0) AS used,
                    coalesce(sum(span) FILTER (consumers > 0 AND ready > 0), 0) AS waits,
                    sum(done) FILTER (consumers > 0 AND ready > 0)
                    / sum(span * consumers) FILTER (consumers > 0 AND ready > 0) AS each,
                    sum(came) / sum(span) AS inflow FROM s GROUP BY ALL)
            SELECT hour, q, used, waits, 1 - waits / used, each,
                   CASE WHEN each <> 0 THEN ceil(inflow / each)::BIGINT END FROM h WHERE used > 0
            """
        )

    def blocked(self) -> list[tuple[Any, ...]]:
        """(hour, user, cause, times, connections, seconds, longest, first span)."""
        return self.query(
            f"""
            SELECT {_HOUR}, "user", cause, count(*)::BIGINT,
                   count(DISTINCT member || ' ' || conn)::BIGINT, sum(blocked_ms) / 1000,
                   max(blocked_ms) / 1000, max(blocked_ms)::BIGINT
            FROM named WHERE k = 'throttle' GROUP BY ALL
            """
        )

    def capacity(self) -> list[tuple[Any, ...]]:
        """(node, days, p95, peak, lower, target, growth, days that the disk lasts, verdict)."""
        return self.query(
            """
            WITH w AS (SELECT member, t0 // 300000000 * 300 AS sec, max(rss) AS rss,
                    arg_max(wm_bytes / mem_limit, t1) AS share, arg_max(mem_limit, t1) AS lim,
                    min(disk_free) AS free, arg_max(disk_limit, t1) AS keep
                 FROM named WHERE k = 'node' AND rss IS NOT NULL GROUP BY ALL),
            d AS (SELECT member, count(DISTINCT sec // 86400)::BIGINT AS days,
                    count(*) / ((max(sec) - min(sec)) / 300 + 1) AS told,
                    quantile_cont(rss, 0.95) AS p95, max(rss)::BIGINT AS peak,
                    arg_max(share, sec) AS share, arg_max(lim, sec) AS lim,
                    regr_slope(rss, sec - 1795132800) * 604800 AS growth,
                    arg_max(free, sec) AS free,
                    arg_max(keep, sec) AS keep, regr_slope(free, sec - 1795132800) * 86400 AS gain
                 FROM w GROUP BY ALL),
            r AS (SELECT *, p95 / (share * 0.8) AS low,
                    greatest(p95 / (share * 0.8) * 1.25, peak / share) AS target FROM d)
            SELECT member, days, p95, peak, low, target, growth,
                   CASE WHEN gain < 0 THEN greatest(free - keep, 0) / -gain END,
                   CASE WHEN days < 3 OR told < 0.95 THEN 'not_enough_data' WHEN low > lim
                   THEN 'grow' WHEN target < lim * 0.5 THEN 'shrink' ELSE 'ok' END
            FROM r
            """
        )

    def leaders(self) -> list[tuple[Any, ...]]:
        """(hour, node, queues led last, octets that came into them, both over the mean)."""
        return self.query(
            f"""
            WITH s AS (SELECT *, {_HOUR} AS hour,
                    c_enq_bytes - coalesce(lag(c_enq_bytes) OVER w, c_enq_bytes - enq_bytes) AS came
                 FROM named WHERE k = 'queue'
                 WINDOW w AS (PARTITION BY grp ORDER BY term, t1, c_enq, c_ack, seq)),
            led AS (SELECT hour, grp, arg_max(member, (term, t1)) AS node, sum(came) AS load
                 FROM s GROUP BY ALL),
            nodes AS (SELECT DISTINCT {_HOUR} AS hour, member AS node FROM named WHERE k = 'node'),
            per AS (SELECT n.hour, n.node, count(grp) AS leaders, coalesce(sum(load), 0) AS load
                 FROM nodes n LEFT JOIN led USING (hour, node) GROUP BY ALL)
            SELECT hour, node, leaders::BIGINT, load::BIGINT,
                   leaders / avg(leaders) OVER (PARTITION BY hour),
                   load / avg(load) OVER (PARTITION BY hour) FROM per
            """
        )

    def settings(self) -> list[tuple[Any, ...]]:
        """(hour, vhost, queues, with a dead letter exchange, a limit, quorum queues)."""
        return self.query(
            f"""
            WITH l AS (SELECT {_HOUR} AS hour, vhost, grp,
                    arg_max({{'d': dlx, 'm': max_len, 't': qtype}}, (term, t1)) AS s
                 FROM rows WHERE k = 'queue' GROUP BY ALL)
            SELECT hour, vhost, count(*)::BIGINT, count(s.d)::BIGINT, count(s.m)::BIGINT,
                   count(*) FILTER (s.t = 'quorum')::BIGINT FROM l GROUP BY ALL
            """
        )

    def policies(self) -> list[tuple[Any, ...]]:
        """(hour, kind, policy, state, matched, won, its own arguments, who wins instead)."""
        of = f"PARTITION BY {_HOUR}, vhost, kind, policy"
        return self.query(
            f"""
            WITH p AS (SELECT *, {_HOUR} AS hour, row_number() OVER ({of} ORDER BY t1 DESC) AS back,
                    max({_sum("matched")}) OVER ({of}) AS most, max({_sum("won")}) OVER ({of}) AS w
                 FROM rows WHERE k = 'policy')
            SELECT hour, kind, policy, CASE WHEN w > 0 THEN 'wins' WHEN NOT whole THEN 'unknown'
                   WHEN most > 0 THEN 'shadowed' ELSE 'matches_nothing' END,
                   {_sum("matched")}, {_sum("won")}, {_sum("overridden")},
                   CASE WHEN lost_to <> '' THEN lost_to END
            FROM p WHERE back = 1 AND coalesce(state, '') <> 'deleted'
            """
        )

    def without_policy(self) -> list[tuple[Any, ...]]:
        """(hour, vhost, objects, those under no policy) of all kinds together."""
        return self.query(
            f"""
            SELECT DISTINCT ON (hour, vhost) {_HOUR} AS hour, vhost, {_sum("objects")},
                   {_sum("without_policy")}
            FROM rows WHERE k = 'topo' AND kind = 'vhost' ORDER BY hour, vhost, t1 DESC
            """
        )

    def idle_exchanges(self) -> list[tuple[Any, ...]]:
        """(hour, exchange, bindings, leads nowhere, idle_in_s) of those idle or leading nowhere."""
        return self.query(
            f"""
            WITH hours AS (SELECT {_HOUR} AS hour,
                    least(max(t1), min({_HOUR}) + 3600000000) AS until FROM rows GROUP BY 1),
            l AS (SELECT hour, until, exchange, max(t1) AS told, min(t0) AS since,
                    arg_max(bindings, t1)::BIGINT AS bindings,
                    arg_max(has_alternate, t1) AS caught, arg_max(is_target, t1) AS led_to,
                    arg_max(coalesce(state, ''), t1) AS state
                 FROM rows JOIN hours ON t0 < hour + 3600000000
                 WHERE k = 'topo' AND kind = 'exchange' GROUP BY ALL),
            c AS (SELECT hour, exchange, max(t1) AS came FROM rows
                 JOIN hours ON t0 < hour + 3600000000
                 WHERE k = 'exchange' AND "in" + internal_in > 0 GROUP BY ALL)
            SELECT hour, exchange, bindings, bindings = 0 AND NOT caught,
                   CASE WHEN NOT led_to THEN (until - coalesce(came, since)) / 1e6 END
            FROM l LEFT JOIN c USING (hour, exchange)
            WHERE told > hour AND state <> 'deleted' AND (bindings = 0 AND NOT caught
                  OR NOT led_to AND until - coalesce(came, since) >= 3600000000)
            """
        )

    def poison(self) -> list[tuple[Any, ...]]:
        """(hour, queue, fingerprint, end, messages, tries at the most, redeliveries)."""
        return self.query(
            f"""
            SELECT {_HOUR}, queue, CASE WHEN fp <> '' THEN fp END, ended, sum(n)::BIGINT,
                   max(tries)::BIGINT, sum(redeliveries)::BIGINT
            FROM rows WHERE k = 'redel' GROUP BY ALL
            """
        )
