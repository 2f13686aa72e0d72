"""Declares that are refused: protected objects, lost races, the order of what is told."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.core.catalog import catalog_commands, declare
from brokerd.core.catalog.catalog_objects import Owner
from tests.unit.core.catalog.test_declare import LOCKED, with_rights
from tests.unit.core.catalog_driver import OTHER, OWN, VHOST, CatalogDriver, is_refused

OWNER = Owner(managed_by="op", resource="ns/x", uid="u1", protected=True)


@pytest.fixture
def catalog() -> CatalogDriver:
    return CatalogDriver()


def test_a_protected_object_is_changed_by_no_client(catalog: CatalogDriver) -> None:
    """R-Q-14"""
    catalog.exchange("x")
    catalog.do(catalog_commands.set_owner("exchange", VHOST, "x", OWNER))
    spec = {"type": "direct", "durable": False, "settings": {"alternate-exchange": "a"}}
    reply = catalog.put("exchange", "x", spec, cause="amqp:guest")
    assert (reply["code"], reply["amqp"]) == ("REFUSED", 403)
    catalog.queue("q")
    catalog.do(catalog_commands.set_owner("queue", VHOST, "q", OWNER))
    answer = declare.delete_queue(
        catalog.view,
        catalog.profile,
        catalog.access,
        "q",
        if_unused=False,
        if_empty=False,
        connection=OWN,
    )
    is_refused(answer, 405, "Cannot delete protected queue 'q' in vhost '/'.")


def test_a_redeclaration_that_lost_the_race_is_judged_when_applied(catalog: CatalogDriver) -> None:
    """R-EX-4, R-Q-4: another node's declare came first."""
    catalog.exchange("x")
    reply = catalog.put("exchange", "x", {"type": "topic"}, cause="amqp:guest", declare=True)
    assert (reply["code"], reply["amqp"]) == ("PRECONDITION", 406)
    same = catalog.put(
        "exchange", "x", {"type": "direct", "durable": False}, cause="amqp:guest", declare=True
    )
    assert same["code"] == "UNCHANGED"


def test_exclusive_queues_of_one_connection_go_one_by_one(catalog: CatalogDriver) -> None:
    """R-Q-9"""
    for name in ("a", "b"):
        catalog.queue(name, exclusive=True)
    catalog.delete("queue", "a")
    assert [queue.name for queue in catalog.view.exclusive_queues(OWN)] == ["b"]


def test_what_has_no_rights_or_is_not_there_is_told_in_that_order(catalog: CatalogDriver) -> None:
    """R-ERR-1, R-ERR-2, R-ERR-41, R-EX-5, R-Q-7, R-PERM-6"""
    nobody = with_rights(catalog)
    text = "{} access to {} refused for user 'u'"
    passive = catalog.queue("q", passive=True, access=nobody)
    is_refused(passive, 403, text.format("configure", "queue 'q' in vhost '/'"))
    flags: dict[str, Any] = {"if_unused": False, "if_empty": False, "connection": OWN}
    deleted = declare.delete_queue(catalog.view, catalog.profile, nobody, "q", **flags)
    is_refused(deleted, 403, text.format("configure", "queue 'q' in vhost '/'"))
    used = declare.use_queue(catalog.view, nobody, "q", OWN)
    is_refused(used, 403, text.format("read", "queue 'q' in vhost '/'"))
    missing = "no queue 'q' in vhost '/'"
    is_refused(declare.use_queue(catalog.view, catalog.access, "q", OWN), 404, missing)
    published = declare.check_publish(nobody, "x", None)
    is_refused(published, 403, text.format("write", "exchange 'x' in vhost '/'"))
    missing = "no exchange 'x' in vhost '/'"
    is_refused(declare.check_publish(catalog.access, "x", None), 404, missing)
    catalog.exchange("t", "topic")
    found = catalog.view.exchange(VHOST, "t")
    assert declare.check_publish(catalog.access, "t", found, ("k",)) is None
    catalog.queue("q", exclusive=True)
    locked = declare.delete_queue(
        catalog.view,
        catalog.profile,
        catalog.access,
        "q",
        if_unused=False,
        if_empty=False,
        connection=OTHER,
    )
    is_refused(locked, 405, LOCKED)


def test_a_queue_type_that_is_no_text_is_told_by_its_type(catalog: CatalogDriver) -> None:
    """R-Q-1"""
    is_refused(
        catalog.queue("q", arguments={"x-queue-type": 5}),
        406,
        "invalid arg 'x-queue-type' for queue 'q' in vhost '/': {unacceptable_type,signedint}",
    )
