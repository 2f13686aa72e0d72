"""Shovels are checked when they are set: the proposing member's verdict on `shovel` parameters.

Whatever is wrong is told to whoever sets it, as RabbitMQ does; what got into the catalog all the
same (from an older member, say) is told by the shovel's row.  Called by broker.py before a
proposal, before sealed_parameters.py hides the URIs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from brokerd.core.catalog import features
from brokerd.federation import shovel
from brokerd.federation.errors import UpstreamError

if TYPE_CHECKING:
    from brokerd.core.catalog.catalog_state import CatalogState

_PREFIX = shovel.COMPONENT + "/"


def check(operation: dict[str, Any], view: CatalogState) -> None:
    """Give each put of a shovel in an operation a verdict if it cannot be used."""
    for each in operation.get("operations", (operation,)):
        if (
            each.get("do") == "put"
            and each.get("kind") == "parameter"
            and each["name"].startswith(_PREFIX)
        ):
            fault = _fault(each, view)
            if fault is not None:
                each.setdefault("verdict", fault)


def _fault(put: dict[str, Any], view: CatalogState) -> str | None:
    if features.SHOVELS not in view.enabled_features:
        return f"feature flag '{features.SHOVELS}' is not enabled: upgrade all members first"
    value = put["spec"].get("value")
    present = view.spec("parameter", put["vhost"], put["name"])
    stored = {} if present is None else present["value"]
    if isinstance(value, dict) and isinstance(stored, dict):
        # An export has no passwords, so that its import leaves those that are there.
        kept = {key: "amqp://" for key in shovel.URI_KEYS if key in stored}
        value = kept | {key: item for key, item in value.items() if item is not None}
    try:
        shovel.parse(put["vhost"], put["name"].removeprefix(_PREFIX), value)
    except UpstreamError as error:
        return str(error)
    return None
