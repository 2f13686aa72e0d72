"""The exchange type x-federation-upstream: what a link's internal exchange must look like, and
which messages it takes (R-FX-4, R-FX-12).

Pure.  A link of another broker declares one here and binds it as its exchange at home is bound; it
hands everything to its queue, but for what has been there already or has come too far.  Members
before the feature flag `upstream_exchange_type` know no such type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from brokerd.core.catalog import refusals
from brokerd.core.catalog.refusals import Refused

TYPE = "x-federation-upstream"
#: Where a message has been: a list of tables, the last place first.
RECEIVED_FROM = "x-received-from"
MAX_HOPS = "x-max-hops"
DOWNSTREAM_NAME = "x-downstream-name"
DOWNSTREAM_VHOST = "x-downstream-vhost"


def already_seen(entries: Sequence[Any], cluster: str, vhost: str) -> bool:
    """Say whether (cluster, vhost) is named in an x-bound-from or x-received-from list."""
    return any(
        isinstance(entry, dict)
        and entry.get("cluster-name") == cluster
        and entry.get("vhost") == vhost
        for entry in entries
    )


def check_arguments(arguments: Mapping[str, Any]) -> Refused | None:
    """Refuse a declaration that says not for whom the exchange is, or how far messages may go."""
    for name, kind, shown in (
        (MAX_HOPS, int, "long"),
        (DOWNSTREAM_NAME, str, "longstr"),
        (DOWNSTREAM_VHOST, str, "longstr"),
    ):
        if name not in arguments:
            return refusals.precondition_failed(f"Argument {name} missing")
        if type(arguments[name]) is not kind:
            return refusals.precondition_failed(f"Argument {name} must be of type {shown}")
    return None


def takes(arguments: Mapping[str, Any], headers: Mapping[str, Any] | None) -> bool:
    """Tell whether an exchange with these arguments takes a message with these headers."""
    received = None if headers is None else headers.get(RECEIVED_FROM)
    if not isinstance(received, list):
        return True
    return len(received) < arguments[MAX_HOPS] and not already_seen(
        received, arguments[DOWNSTREAM_NAME], arguments[DOWNSTREAM_VHOST]
    )
