"""The name by which other clusters know this one (R-FED-8): in federation's queues and headers, and
in the server properties that clients receive.

It must be no other cluster's: two downstreams of one name share their upstream queue.  So it is
made at the founding and kept with the catalog, unless the configuration or `brokerctl
set_cluster_name` says another.  What members check each other by is `cluster.name` alone.
"""

from __future__ import annotations

from brokerd.config import CLUSTER_NAME
from brokerd.core.catalog import names
from brokerd.core.catalog.catalog_state import CatalogState

#: The cluster-wide setting that set_cluster_name writes.
SETTING = "cluster_name"
#: Of the random cluster id: enough to tell the clusters of an organisation apart.
ID_CHARACTERS = 8


def founding(configured: str, node: str, cluster_id: str) -> str:
    """Return the name of a new cluster: as configured, else its founder's and what no other has."""
    return configured if configured != CLUSTER_NAME else f"{node}-{cluster_id[:ID_CHARACTERS]}"


def of(configured: str, view: CatalogState) -> str:
    """Return the name.  A cluster that was founded under the default name keeps that until it is
    given another: its upstream queues are called so.
    """
    given = view.setting(SETTING)
    if given:
        return str(given)
    return configured if configured != CLUSTER_NAME else view.cluster_name or configured


def problem(value: str) -> str | None:
    """Return why this can be no cluster's name, None if it can."""
    if not value.strip() or not value.isprintable() or names.is_too_long(value):
        return f"{SETTING}: must be a printable text of at most {names.NAME_BYTES_MAX} bytes"
    return None
