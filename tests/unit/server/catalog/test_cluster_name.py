"""The name by which other clusters know this one (R-FED-8)."""

from __future__ import annotations

import pytest

from brokerd.config import CLUSTER_NAME
from brokerd.core.catalog import catalog_commands
from brokerd.server.catalog import cluster_name
from tests.unit.core.catalog_driver import CatalogDriver


def test_a_new_cluster_has_a_name_of_its_own_unless_one_is_configured() -> None:
    """R-FED-8."""
    first = cluster_name.founding(CLUSTER_NAME, "brokerd@host", "0123456789abcdef")
    second = cluster_name.founding(CLUSTER_NAME, "brokerd@host", "fedcba9876543210")
    assert (first, second) == ("brokerd@host-01234567", "brokerd@host-fedcba98")
    assert cluster_name.founding("shop/orders", "brokerd@host", "0123") == "shop/orders"


def test_a_cluster_keeps_the_name_that_its_upstream_queues_have() -> None:
    """R-FED-8, R-FX-2: one of before, founded under the default name or under a configured one."""
    view = CatalogDriver().view
    assert cluster_name.of("orders", view) == "orders"
    view.cluster_name = CLUSTER_NAME
    assert cluster_name.of(CLUSTER_NAME, view) == CLUSTER_NAME
    view.cluster_name = "brokerd@host-01234567"
    assert cluster_name.of(CLUSTER_NAME, view) == "brokerd@host-01234567"
    # Before the catalog is there.
    view.cluster_name = ""
    assert cluster_name.of(CLUSTER_NAME, view) == CLUSTER_NAME


def test_the_name_that_an_administrator_gives_counts() -> None:
    """R-FED-8."""
    catalog = CatalogDriver()
    catalog.do(catalog_commands.set_setting(cluster_name.SETTING, "east"))
    assert cluster_name.of("orders", catalog.view) == "east"
    catalog.do(catalog_commands.set_setting(cluster_name.SETTING, None))
    assert cluster_name.of("orders", catalog.view) == "orders"


@pytest.mark.parametrize("name", ["", " ", "a\nb", "a\0", "x" * 256, "ä" * 128])
def test_what_can_be_no_name_is_refused(name: str) -> None:
    assert cluster_name.problem(name) is not None


def test_any_other_text_is_a_name() -> None:
    for name in ("rabbit@host", "shop/orders", "Käse", "x" * 255):
        assert cluster_name.problem(name) is None
