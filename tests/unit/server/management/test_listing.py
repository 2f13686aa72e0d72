"""Pages, names, order and columns of lists (brokerd/server/management/listing.py)."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from brokerd.core.catalog import patterns
from brokerd.server.management import listing
from brokerd.server.management.call import HttpError

ROWS = [{"name": name, "vhost": "/", "n": {"m": i}} for i, name in enumerate("cab")]


def answered(query: dict[str, str], rows: list[dict[str, Any]] | None = None) -> Any:
    """Return the list as it is asked for."""
    return asyncio.run(listing.answer(ROWS if rows is None else rows, query))


def names(rows: Any) -> str:
    return "".join(row["name"] for row in rows)


def refused(query: dict[str, str]) -> HttpError:
    with pytest.raises(HttpError) as caught:
        answered(query)
    assert caught.value.status == 400
    return caught.value


def test_without_a_page_the_whole_list_comes() -> None:
    assert names(answered({"name": "a", "page_size": "1"})) == "cab"


def test_a_page_says_how_many_there_are() -> None:
    assert answered({"page": "2", "page_size": "2", "sort": "name", "columns": "name"}) == {
        "filtered_count": 3,
        "item_count": 1,
        "page": 2,
        "page_count": 2,
        "page_size": 2,
        "total_count": 3,
        "items": [{"name": "c"}],
    }


def test_names_are_looked_for_anywhere_in_either_case_or_by_a_pattern() -> None:
    assert names(answered({"page": "1", "name": "A"})["items"]) == "a"
    assert names(answered({"page": "1", "name": "[BC]", "use_regex": "true"})["items"]) == "cb"
    assert answered({"page": "1", "name": "z"})["page_count"] == 0


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ({"page": "0"}, "invalid_pagination_parameters"),
        ({"page": "1", "page_size": "501"}, "invalid_pagination_parameters"),
        ({"page": "1", "page_size": "0"}, "invalid_pagination_parameters"),
        ({"page": "x"}, "bad_request"),
        ({"page": "9" * 5000}, "bad_request"),
        ({"page": "2"}, "page_out_of_range"),
        ({"page": "1", "name": "(", "use_regex": "true"}, "bad_request"),
    ],
)
def test_what_is_no_page_is_refused(query: dict[str, str], error: str) -> None:
    assert refused(query).error == error


def test_a_pattern_that_takes_too_long_over_all_names_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SEC-19: one name has a time limit, and so have ten thousand."""
    monkeypatch.setattr(listing, "FILTER_S", 0.1)
    rows = [{"name": "a" * 200 + "!"} for _ in range(1000)]
    with pytest.raises(HttpError, match=re.escape("takes too long")):
        answered({"page": "1", "use_regex": "true", "name": "(a|aa)+$"}, rows)
    # Each name by itself is done soon.
    rows = [{"name": "a" * 20 + str(number)} for number in range(10_000)]
    with pytest.raises(HttpError, match=re.escape("takes too long")):
        answered({"page": "1", "use_regex": "true", "name": "(a|aa)+$"}, rows)


def test_a_pattern_that_takes_long_for_one_name_is_tried_on_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SEC-19: ten names of 50 ms each held the loop for half a second."""
    tried: list[float] = []
    real = patterns.found

    def found(pattern: str, name: str, timeout_s: float) -> bool | None:
        tried.append(timeout_s)
        return real(pattern, name, timeout_s)

    monkeypatch.setattr(patterns, "found", found)
    rows = [{"name": "a" * 200 + "!"} for _ in range(1000)]
    with pytest.raises(HttpError, match=re.escape("takes too long")):
        answered({"page": "1", "use_regex": "true", "name": "(a|aa)+$"}, rows)
    assert tried == [listing.NAME_S]


def test_a_long_pattern_is_compiled_beside_the_loop() -> None:
    wanted = "|".join(f"queue-{number}-x" for number in range(1000))
    rows = [{"name": "queue-7-x"}, {"name": "other"}]
    found = answered({"page": "1", "use_regex": "true", "name": wanted}, rows)
    assert names(found["items"]) == "queue-7-x"
    long = {"page": "1", "use_regex": "true", "name": "(" * 1000}
    assert refused(long).error == "bad_request"


def test_order_is_by_columns_and_may_be_reversed() -> None:
    assert names(answered({"sort": "n.m", "sort_reverse": "true"})) == "bac"
    mixed = [{"name": "x", "k": "t"}, {"name": "y", "k": 1}, {"name": "z"}, {"name": "w", "k": []}]
    assert names(answered({"sort": "k"}, mixed)) == "zywx"


def test_columns_may_be_within_others_and_those_that_are_missing_are_left_out() -> None:
    assert answered({"columns": "n.m,vhost,n.no,no.m", "sort": "name"})[0] == {
        "n": {"m": 1},
        "vhost": "/",
    }
