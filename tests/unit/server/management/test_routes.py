"""Paths and methods of the management API (brokerd/server/management/routes.py)."""

from __future__ import annotations

import pytest

from brokerd.server.management import bindings, reference
from brokerd.server.management.call import Answer, Call
from brokerd.server.management.routes import Right, Route, Table
from brokerd.server.management.table import TABLE


async def nothing(_: Call) -> Answer:
    return Answer()


def route(method: str, path: str) -> Route:
    return Route(method, path, Right.MANAGEMENT, nothing, "Nothing")


SMALL = Table(
    [route("GET", "/api/a/{x}"), route("PUT", "/api/a/{x}"), route("GET", "/api/a/fixed/{y}/b")]
)


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("/api/a/%2F", {"x": "/"}),
        ("/api/a/%2f/", {"x": "/"}),
        ("/api/a/b%20%C3%A9", {"x": "b é"}),
        ("/api/a/%FF", {"x": "\udcff"}),
        ("/api/a/%00", {"x": "\0"}),
        ("/api/a/fixed", {"x": "fixed"}),
        ("/api/a/fixed/1/b", {"y": "1"}),
    ],
)
def test_a_path_is_taken_apart_before_it_is_decoded(path: str, parts: dict[str, str]) -> None:
    found = SMALL.find(path)
    assert found is not None
    assert found.parts == parts


@pytest.mark.parametrize("path", ["", "/", "//", "/api", "/api/a", "/api/a/b/c", "/API/a/b", "x"])
def test_other_paths_are_nothing(path: str) -> None:
    assert SMALL.find(path) is None


def test_a_long_path_ends_at_the_first_segment_too_many() -> None:
    assert TABLE.find("/api/queues" + "/x" * 100_000) is None


def test_what_a_path_allows_is_named_as_there() -> None:
    found = SMALL.find("/api/a/b")
    assert found is not None
    assert found.allow == "HEAD, GET, PUT, OPTIONS"


def test_two_routes_for_one_path_are_a_defect() -> None:
    with pytest.raises(AssertionError, match="two routes"):
        Table([route("GET", "/a/{x}"), route("GET", "/a/{y}")])


def test_the_reference_names_every_route() -> None:
    text = reference.markdown(TABLE.routes)
    assert all(f"| {each.method} | `{each.path}` |" in text for each in TABLE.routes)


def test_properties_keys_are_quoted_as_there() -> None:
    """rabbit_mgmt_format: tried with 3.10.8."""
    assert bindings.properties_key("", {}) == "~"
    assert bindings.properties_key("a b/c~d", {}) == "a+b%2Fc%7Ed"
    first, second = (bindings.properties_key("k", {"x": i}) for i in (1, 2))
    assert (first != second, first[:2], len(first)) == (True, "k~", 8)
