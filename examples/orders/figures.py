"""The demo's table: what clients saw beside what Spark counted, and whether it fits."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet
from rich.table import Table

if TYPE_CHECKING:
    from examples.orders.demo import Findings


@dataclass
class Row:
    """One line: a figure, what it must be, and what it is."""

    what: str
    value: str
    expected: str
    is_right: bool


@dataclass
class Books:
    """Spark's sums by queue, and the rows of the audit."""

    queues: dict[str, Counter[str]]
    audit: list[dict[str, Any]]


def read_books(out: Path) -> Books:
    """Read the job's tables, the way any reader of Parquet would."""
    queues: dict[str, Counter[str]] = {}
    for row in _rows(out, "queue_1h"):
        sums = queues.setdefault(row["queue"], Counter())
        for name in ("enq", "ack", "over_limit", "dl_confirmed"):
            sums[name] += int(row.get(name) or 0)
    return Books(queues, _rows(out, "audit_1h"))


def _rows(out: Path, table: str) -> list[dict[str, Any]]:
    from brokerd_telemetry import commit

    rows: list[dict[str, Any]] = []
    for file in commit.table_files(out, table):
        rows += pyarrow.parquet.read_table(file).to_pylist()
    return rows


def _equal(what: str, value: int, expected: int) -> Row:
    return Row(what, f"{value:,}", f"{expected:,}", value == expected)


def rows(found: Findings, books: Books) -> list[Row]:
    """Return all lines."""
    return [*_client_rows(found), *_book_rows(found, books)]


def _client_rows(found: Findings) -> list[Row]:
    plan, notes = found.plan, found.notes
    poison = {order for order in plan.orders() if plan.is_poison(order)}
    unroutable = {order for order in plan.orders() if plan.is_unroutable(order)}
    dead = {int(text.split("-")[0]) for text in found.dead_ids}
    unrouted = {int(text.split("-")[0]) for text in found.unrouted_ids}
    handled = notes.handled_orders()
    lost = notes.confirmed - handled - dead - unrouted
    reasons = Counter(death["reason"] for headers in found.dead for death in headers["x-death"])
    deaths = [headers["x-death"][0] for headers in found.dead]
    duplicates = sum(count - 1 for count in notes.handled.values())
    return [
        _equal("orders confirmed", len(notes.confirmed), plan.count),
        _equal(
            "orders consumed",
            len(handled & set(plan.orders())),
            plan.count - len(poison) - len(unroutable),
        ),
        Row("publishes repeated after the kill", f"{notes.repeated:,}", "any", True),
        Row("duplicates, flagged redelivered", f"{duplicates:,}", "any", True),
        _equal("duplicates, not flagged", notes.unflagged, 0),
        _equal("dead-lettered (distinct orders)", len(dead & poison), len(poison)),
        Row(
            "their x-death",
            ", ".join(f"{reason} x{count}" for reason, count in reasons.items()) or "none",
            "delivery_limit, queue orders",
            set(reasons) == {"delivery_limit"}
            and all(death["queue"] == "orders" and death["count"] == 1 for death in deaths),
        ),
        _equal("alternate-routed (distinct orders)", len(unrouted), len(unroutable)),
        _equal("lost", len(lost), 0),
        Row(
            f"unavailable after the kill of {found.killed}",
            f"{found.unavailable_s:.2f} s",
            "at most 10 s",
            found.unavailable_s <= 10,
        ),
        _equal("federated stock messages", found.stock, 200),
        Row(
            "their x-received-from",
            _origins(found.stock_headers),
            "default/warehouse",
            _origins(found.stock_headers) == "default/warehouse",
        ),
        Row(
            "blocked by the memory alarm", f"{found.blocked_s:.1f} s", "> 2 s", found.blocked_s > 2
        ),
        _equal("orders that entered while blocked", found.held_back, 0),
        Row(
            "orders consumed while blocked",
            f"{found.consumed_while_blocked:,}",
            "> 0",
            found.consumed_while_blocked > 0,
        ),
        _equal("orders confirmed after unblocking", found.blocked_confirmed, 50),
    ]


def _origins(headers: list[dict[str, Any]]) -> str:
    names = {
        str(hop.get("cluster-name", "?")) for table in headers for hop in table["x-received-from"]
    }
    return ", ".join(sorted(names)) or "none"


def _book_rows(found: Findings, books: Books) -> list[Row]:
    """Spark's totals against the clients': a message id is one enqueued copy."""
    empty: Counter[str] = Counter()
    orders = books.queues.get("orders", empty)
    dead = books.queues.get("orders.dead", empty)
    unrouted = books.queues.get("unrouted", empty)
    stock = books.queues.get("stock", empty)
    copies = len(found.notes.handled)
    poison_copies = len(set(found.dead_ids))
    unbalanced = [row for row in books.audit if row.get("residual")]
    return [
        _equal("Spark: orders, acknowledged", orders["ack"], copies),
        _equal("Spark: orders, over the delivery limit", orders["over_limit"], poison_copies),
        _equal("Spark: orders, enqueued", orders["enq"], copies + poison_copies),
        _equal("Spark: orders.dead, enqueued", dead["enq"], len(found.dead_ids)),
        _equal("Spark: unrouted, enqueued", unrouted["enq"], len(found.unrouted_ids)),
        _equal("Spark: stock, enqueued", stock["enq"], found.stock),
        Row(
            "Spark: the books (audit_1h)",
            f"{len(books.audit)} rows, {len(unbalanced)} unbalanced",
            "0 unbalanced",
            bool(books.audit) and not unbalanced,
        ),
    ]


def table(lines: list[Row]) -> Table:
    """Return the table for the terminal."""
    shown = Table(title="What was counted")
    for name, justify in (
        ("figure", "left"),
        ("value", "right"),
        ("must be", "right"),
        ("", "left"),
    ):
        shown.add_column(name, justify=justify)  # type: ignore[arg-type]
    for line in lines:
        mark = "[green]ok[/green]" if line.is_right else "[bold red]WRONG[/bold red]"
        shown.add_row(line.what, line.value, line.expected, mark)
    return shown
