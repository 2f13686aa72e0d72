"""Lists as RabbitMQ's management plugin cuts them: name, sort, page, columns.

Pure but for turns of the loop between slices.  Rows are JSON objects that are never changed: code
that needs other fields makes new ones.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from brokerd.core.catalog import patterns
from brokerd.server.loop.chunks import in_chunks
from brokerd.server.management.call import HttpError, Json, bad_request

Query: TypeAlias = Mapping[str, str]
R = TypeVar("R")

PAGE_SIZE = 100
#: As RabbitMQ has it (rabbit_mgmt_util: MAX_PAGE_SIZE).
PAGE_SIZE_MAX = 500
#: For all names of a list together, and for one of them: clients wait meanwhile.
FILTER_S = 0.5
NAME_S = 0.005
#: Longer patterns are compiled beside the loop: 16 KiB, as much as a request may have, take 0.2 s.
COMPILED_HERE_MAX = 256


@dataclass(slots=True, frozen=True)
class Page:
    """What was asked for."""

    number: int
    size: int


def page_of(query: Query) -> Page | None:
    """Return which page is wanted, None for all; HttpError: 400."""
    if "page" not in query:
        return None
    try:
        number = int(query["page"])
        size = int(query.get("page_size", PAGE_SIZE))
    except ValueError as error:
        raise bad_request("Pagination parameters are invalid") from error
    if number < 1 or not 1 <= size <= PAGE_SIZE_MAX:
        given = size if "page_size" in query else "undefined"
        raise bad_request(
            f"Invalid pagination parameters: page number {number}, page size {given}",
            "invalid_pagination_parameters",
        )
    return Page(number, size)


async def named(
    rows: Sequence[Any], query: Query, name_of: Callable[[Any], str] = lambda row: str(row["name"])
) -> Sequence[Any]:
    """Return the rows whose name contains, or whose name's pattern finds, what is asked for.

    Only with a page, as there.  HttpError: 400 for a pattern that does not compile, or takes too
    long over all names.
    """
    wanted = query.get("name", "")
    if not wanted or not rows or "page" not in query:
        return rows
    if query.get("use_regex", "").lower() != "true":
        # 3.10.8 ignores case.
        folded = wanted.casefold()
        return [row for row in rows if folded in name_of(row).casefold()]
    return await _matching(rows, f"(?i){wanted}", name_of)


async def _matching(
    rows: Sequence[Any], pattern: str, name_of: Callable[[Any], str]
) -> Sequence[Any]:
    if len(pattern) > COMPILED_HERE_MAX:
        problem = await asyncio.to_thread(patterns.error, pattern)
    else:
        problem = patterns.error(pattern)
    if problem is not None:
        raise bad_request("Pagination parameters are invalid")
    found: list[Any] = []
    spent = 0.0
    async for some in in_chunks(rows):
        began = time.thread_time()
        for row in some:
            is_found = patterns.found(pattern, name_of(row), NAME_S)
            if is_found is None or spent + time.thread_time() - began > FILTER_S:
                raise bad_request("the pattern of `name` takes too long")
            if is_found:
                found.append(row)
        spent += time.thread_time() - began
    return found


def cut(rows: Sequence[Any], page: Page, total: int) -> tuple[Sequence[Any], Json]:
    """Return the rows of a page and what is said of it; HttpError: no such page.

    total: how many there were before names were looked at.
    """
    count = len(rows)
    pages = math.ceil(count / page.size)
    if page.number > max(pages, 1):
        raise HttpError(
            400,
            "page_out_of_range",
            f"Page out of range, page: {page.number} page size: {page.size}, len: {count}",
        )
    begin = (page.number - 1) * page.size
    found = rows[begin : begin + page.size]
    return found, {
        "filtered_count": count,
        "item_count": len(found),
        "page": page.number,
        "page_count": pages,
        "page_size": page.size,
        "total_count": total,
    }


def sort_columns(query: Query) -> list[str]:
    """Return by which columns a list is to be sorted, first the first."""
    return [column for column in query.get("sort", "").split(",") if column]


def by_values(rows: Sequence[R], values: Sequence[Sequence[Any]], query: Query) -> Sequence[R]:
    """Return the rows in the order of what each has in the columns that count."""
    if all(len(each) == 1 for each in values[:1]):
        return by_value(rows, [each[0] for each in values], query)
    return _by(rows, [[_rank(value) for value in each] for each in values], query)


def by_value(rows: Sequence[R], values: Sequence[Any], query: Query) -> Sequence[R]:
    """Return the rows in the order of what each has in the one column that counts."""
    kinds = set(map(type, values))
    # Values that compare by themselves are a tenth of the work.
    is_plain = kinds == {str} or kinds <= {int, float}
    return _by(rows, values if is_plain else list(map(_rank, values)), query)


def _by(rows: Sequence[R], keys: Sequence[Any], query: Query) -> Sequence[R]:
    is_reversed = query.get("sort_reverse", "").lower() == "true"
    places = sorted(range(len(rows)), key=keys.__getitem__, reverse=is_reversed)
    return [rows[at] for at in places]


def _rank(value: Any) -> tuple[int, Any]:
    """Order values of several types as Erlang does: numbers, atoms, lists, text."""
    if value is None:
        return (0, 0)
    if isinstance(value, bool):
        return (2, value)
    if isinstance(value, int | float):
        return (1, value)
    if isinstance(value, str):
        return (4, value)
    return (3, len(value) if isinstance(value, list | dict) else 0)


def dotted(row: Any, column: str) -> Any:
    """Return what `a.b` names in a row, None if nothing."""
    for part in column.split("."):
        if not isinstance(row, Mapping) or part not in row:
            return None
        row = row[part]
    return row


def columns_of(query: Query) -> list[list[str]] | None:
    """Return the columns that are wanted, None for all."""
    wanted = [column.split(".") for column in query.get("columns", "").split(",") if column]
    return wanted or None


def chosen(row: Json, columns: list[list[str]] | None) -> Json:
    """Return a row with these columns only."""
    if columns is None:
        return row
    found: Json = {}
    for path in columns:
        _take(found, row, path)
    return found


def _take(into: Json, row: Any, path: list[str]) -> None:
    key = path[0]
    if not isinstance(row, Mapping) or key not in row:
        return
    if len(path) == 1:
        into[key] = row[key]
        return
    inner = into.setdefault(key, {})
    if isinstance(inner, dict):
        _take(inner, row[key], path[1:])
        if not inner:
            del into[key]


def _as_it_is(row: Json) -> Json:
    return row


async def answer(
    rows: Sequence[Json],
    query: Query,
    default_sort: Sequence[str] = (),
    shown: Callable[[Json], Json] = _as_it_is,
) -> Any:
    """Return a list of whole rows as it is asked for: the rows, or a page of them.

    shown: makes of a row what is answered, once it is known which those are.
    """
    page = page_of(query)
    found = await _ordered(await named(rows, query), query, default_sort)
    columns = columns_of(query)
    if page is None:
        return [chosen(shown(row), columns) async for some in in_chunks(found) for row in some]
    items, said = cut(found, page, len(rows))
    return {**said, "items": [chosen(shown(row), columns) for row in items]}


async def _ordered(rows: Sequence[Json], query: Query, default: Sequence[str]) -> Sequence[Json]:
    """Return the rows by what is asked for, else by the default; those that lack it come first."""
    columns = sort_columns(query) or list(default)
    if not columns:
        return rows
    keys: list[Sequence[Any]] = []
    async for some in in_chunks(rows):
        keys += [[dotted(row, column) for column in columns] for row in some]
    return by_values(rows, keys, query)


async def whole(rows: Sequence[Json], query: Query, default_sort: Sequence[str] = ()) -> Any:
    """Return a list that RabbitMQ does not page, whatever is asked."""
    return await answer(rows, {k: v for k, v in query.items() if k != "page"}, default_sort)
