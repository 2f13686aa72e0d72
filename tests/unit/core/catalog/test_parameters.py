"""Runtime parameters: what identifies one, and what one vhost's have to do with another's."""

from __future__ import annotations

import pytest

from tests.unit.core.catalog_driver import CatalogDriver


@pytest.fixture
def catalog() -> CatalogDriver:
    driver = CatalogDriver()
    driver.put("vhost", "other", {}, vhost="")
    return driver


def values(catalog: CatalogDriver, vhost: str, component: str) -> dict[str, object]:
    """Return the parameters of a component by name."""
    return dict(catalog.view.parameters(vhost, component))


def test_a_parameter_is_known_by_vhost_component_and_name(catalog: CatalogDriver) -> None:
    """R-POL-13: the same name in another component or vhost is another parameter."""
    for vhost, component, value in (
        ("/", "federation-upstream", {"uri": "amqp://one"}),
        ("/", "of-somebody", {"n": 1}),
        ("other", "federation-upstream", {"uri": "amqp://two"}),
    ):
        reply = catalog.put("parameter", f"{component}/u", {"value": value}, vhost)
        assert reply["code"] == "OK", reply
    assert values(catalog, "/", "federation-upstream") == {"u": {"uri": "amqp://one"}}
    assert values(catalog, "/", "of-somebody") == {"u": {"n": 1}}
    assert values(catalog, "other", "federation-upstream") == {"u": {"uri": "amqp://two"}}


def test_a_second_definition_replaces_the_first(catalog: CatalogDriver) -> None:
    """R-POL-13: names are unique."""
    for uri in ("amqp://one", "amqp://two"):
        catalog.put("parameter", "federation-upstream/u", {"value": {"uri": uri}})
    assert values(catalog, "/", "federation-upstream") == {"u": {"uri": "amqp://two"}}
    again = catalog.put("parameter", "federation-upstream/u", {"value": {"uri": "amqp://two"}})
    assert again["code"] == "UNCHANGED"
    assert catalog.delete("parameter", "federation-upstream/u")["code"] == "OK"
    assert values(catalog, "/", "federation-upstream") == {}


def test_parameters_go_with_their_vhost(catalog: CatalogDriver) -> None:
    """R-POL-13, R-VH-1: and stay in the others."""
    for vhost in ("/", "other"):
        catalog.put("parameter", "federation-upstream-set/s", {"value": []}, vhost)
    catalog.delete("vhost", "other", vhost="")
    assert values(catalog, "other", "federation-upstream-set") == {}
    assert values(catalog, "/", "federation-upstream-set") == {"s": []}
