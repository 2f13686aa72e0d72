"""What happens to messages that no queue takes, and in which form annotations are kept."""

from __future__ import annotations

import logging

import pytest

from brokerd.core.catalog.catalog_machine import CatalogMachine
from brokerd.core.catalog.router import RouteResult
from brokerd.core.profiles import Profile, profile
from brokerd.server.messages.routing import MemberRouting
from brokerd.telemetry.counters import Counters


def routing_of(catalog: CatalogMachine, rules: Profile) -> MemberRouting:
    return MemberRouting(catalog.state, rules, Counters(lambda: 0, lambda: 0))


def test_what_nobody_takes_is_counted_and_a_missing_alternate_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """R-AE-4."""
    rules = profile(ae_warn_missing=True)
    routing = routing_of(CatalogMachine(rules), rules)
    missing = RouteResult(None)
    missing.ae_missing = ("a", "b")
    with caplog.at_level(logging.WARNING):
        routing.unroutable("/", "a", missing, 3)
        routing.unroutable("/", "a", missing, 2)
        routing.unroutable("/", "a", RouteResult(None), 1)
    assert routing.unroutable_total == 6
    assert [record.getMessage() for record in caplog.records] == [
        "alternate exchange 'b' in vhost '/' of exchange 'a' in vhost '/' does not exist"
    ]
