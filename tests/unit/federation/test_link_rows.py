"""Telemetry rows of links and shovels: differences, and links that start anew."""

from __future__ import annotations

from typing import Any

from brokerd.federation import shovel, upstream
from brokerd.federation.link_events import Connected, Delivered, Prepared, Started
from brokerd.federation.link_headers import ExchangePassage
from brokerd.federation.link_rows import LinkRows
from brokerd.federation.link_state import FederationLink
from brokerd.federation.shovel_ends import ShovelPassage


def link() -> FederationLink:
    there = upstream.parse("u", {"uri": "amqp://me:secret@h"})
    made = FederationLink(there, ExchangePassage("here", "/", "x", there))
    made.handle(Started(0))
    made.handle(Connected(0, "amqp://h", "there", "/", "local"))
    made.handle(Prepared(0))
    return made


def listed(made: FederationLink) -> dict[str, Any]:
    return {"id": "l", **made.status(), **made.overview()}


def deliver(made: FederationLink, tag: int) -> None:
    made.handle(Delivered(tag, False, "x", "k", b"\x00\x00", [b"12345678"], 0))


def test_rows_say_what_happened_since_the_last_ones() -> None:
    rows = LinkRows()
    made = link()
    deliver(made, 1)
    (first,) = rows.rows([listed(made)], 0, 10)
    deliver(made, 2)
    deliver(made, 3)
    (second,) = rows.rows([listed(made)], 10, 20)
    assert (first["in"], first["in_bytes"], first["hops"][0]) == (1, 10, 1)
    assert (second["in"], second["in_bytes"], second["hops"][0]) == (2, 20, 2)
    assert (second["k"], second["link"], second["state"]) == ("fed", "l", "running")
    assert (second["t0"], second["t1"], second["in_flight"]) == (10, 20, 3)
    assert "secret" not in str(second)


def test_a_link_that_starts_anew_counts_from_zero() -> None:
    rows = LinkRows()
    made = link()
    for tag in (1, 2, 3):
        deliver(made, tag)
    rows.rows([listed(made)], 0, 10)
    again = link()
    deliver(again, 1)
    (row,) = rows.rows([listed(again)], 10, 20)
    assert (row["in"], row["hops"][0]) == (1, 1)


def test_a_link_that_never_was_is_a_row_with_its_error() -> None:
    problem = {
        "id": "p",
        "upstream": "u",
        "vhost": "/",
        "exchange": "x",
        "queue": "",
        "uri": "",
        "status": "error",
        "error": "uri is missing",
    }
    (row,) = LinkRows().rows([problem], 0, 10)
    assert (row["exchange"], row["queue"]) == ("x", "")
    assert (row["state"], row["err"], row["in"], row["hops"]) == ("error", "uri is missing", 0, [])


def test_what_waits_upstream_is_told_where_it_is_known() -> None:
    (without,) = LinkRows().rows([listed(link())], 0, 10)
    (told,) = LinkRows().rows([{**listed(link()), "backlog": 7}], 0, 10)
    assert ("backlog" in without, told["backlog"]) == (False, 7)


def test_shovels_have_rows_of_their_own_kind() -> None:
    """Both ends without credentials, and what was moved since the last rows."""
    there = "amqp://me:secret@there"
    value = {"src-uri": there, "src-queue": "q", "dest-uri": there, "dest-exchange": "x"}
    definition = shovel.parse("/", "s", value)
    made = FederationLink(definition, ShovelPassage(definition, "here"))
    row = {"id": definition.link_id, **made.status(), "in": 9, "moved": 5, "lag_count": 2}
    rows = LinkRows()
    rows.rows([row], 0, 10)
    (found,) = rows.rows([row | {"moved": 8, "lag_count": 3, "lag_sum_ms": 40}], 10, 20)
    assert (found["k"], found["shovel"], found["vhost"]) == ("shovel", "s", "/")
    assert (found["in"], found["moved"]) == (0, 3)
    assert (found["lag_count"], found["lag_sum_ms"]) == (1, 40)
    assert (found["queue"], found["dest_exchange"]) == ("q", "x")
    assert (found["dest"], "hops" in found) == ("amqp://there", False)
    assert "secret" not in str(found)


def test_a_shovel_that_never_was_is_a_row_with_its_error() -> None:
    problem = {
        "id": "shovel /:s",
        "type": "shovel",
        "upstream": "s",
        "vhost": "/",
        "uri": "",
        "status": "error",
        "error": "src-uri is missing",
    }
    (row,) = LinkRows().rows([problem], 0, 10)
    assert (row["k"], row["state"], row["err"]) == ("shovel", "error", "src-uri is missing")
    assert (row["queue"], row["dest"], row["moved"]) == ("", "", 0)
