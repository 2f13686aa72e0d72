"""Limits of what one vhost may hold, beside those of a declare (test_declare.py)."""

from __future__ import annotations

import pytest

from brokerd.core.catalog import catalog_checks
from tests.unit.core.catalog_driver import CatalogDriver


@pytest.fixture
def catalog() -> CatalogDriver:
    driver = CatalogDriver()
    driver.queue("q")
    return driver


def put_binding(catalog: CatalogDriver, key: str) -> tuple[str, int | None, str]:
    """Bind amq.direct to q; return code, AMQP's code and text of the reply."""
    spec = {"source": "amq.direct", "destination": "q", "routing_key": key}
    spec |= {"destination_kind": "queue"}
    reply = catalog.put("binding", f"amq.direct|queue|q|{key}|", spec)
    return reply["code"], reply["amqp"], reply["text"]


def test_bindings_of_a_vhost_are_limited(catalog: CatalogDriver) -> None:
    """SEC-44: max-bindings; one that is there already is no new one."""
    catalog.put("vhost", "/", {"limits": {"max-bindings": 2}}, vhost="")
    assert put_binding(catalog, "1")[0] == "OK"
    assert put_binding(catalog, "2")[0] == "OK"
    text = "cannot bind to exchange 'amq.direct' in vhost '/': binding limit of 2 is reached"
    assert put_binding(catalog, "3") == ("REFUSED", 406, text)
    assert put_binding(catalog, "2")[0] == "UNCHANGED"
    catalog.delete("binding", "amq.direct|queue|q|1|")
    assert put_binding(catalog, "3")[0] == "OK"


@pytest.mark.plain
def test_a_vhost_without_a_limit_of_its_own_has_one_all_the_same(
    catalog: CatalogDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SEC-44: unset or negative means the ceiling, 0 forbids (O-4)."""
    monkeypatch.setattr(catalog_checks, "BINDINGS_MAX", 1)
    assert put_binding(catalog, "1")[0] == "OK"
    assert put_binding(catalog, "2")[0] == "REFUSED"
    catalog.put("vhost", "/", {"limits": {"max-bindings": -1}}, vhost="")
    assert put_binding(catalog, "2")[0] == "REFUSED"
    catalog.put("vhost", "/", {"limits": {"max-bindings": 0}}, vhost="")
    catalog.delete("binding", "amq.direct|queue|q|1|")
    assert put_binding(catalog, "1")[0] == "REFUSED"
