"""Definitions of upstreams and sets before they are stored: what is wrong with them, and which
links would need another upstream queue, so that what waits in theirs were lost.

PURE.  For the server's checks of runtime parameters; links read what is stored by `upstream.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from brokerd.federation import upstream as upstreams
from brokerd.federation.errors import UpstreamError
from brokerd.federation.upstream import SEALED, Choice

UPSTREAM = "federation-upstream"
UPSTREAM_SET = "federation-upstream-set"
#: Stands for a URI that cannot and need not be read here.
_ANY_URI = "amqp://"

#: Upstreams and sets of a vhost by name.
Definitions = tuple[Mapping[str, Any], Mapping[str, Any]]


@dataclass(slots=True, frozen=True)
class NewQueue:
    """A link that needs another upstream queue, because these keys have other values."""

    exchange: str
    upstream: str
    keys: tuple[str, ...]


def problem_of_upstream(value: Any, *, has_uri: bool) -> str | None:
    """Return what is wrong with an upstream's definition.

    has_uri: one is stored, which stays if the definition has none.
    """
    if isinstance(value, dict):
        if value.get("uri") is None and has_uri:
            value = value | {"uri": _ANY_URI}
        elif _is_sealed(value.get("uri")):
            # Whether it may stand here is not a matter of its form.
            value = value | {"uri": _ANY_URI}
    return _complaint(value)


def _is_sealed(uri: Any) -> bool:
    return any(
        isinstance(text, str) and text.startswith(SEALED)
        for text in (uri if isinstance(uri, list) else [uri])
    )


def _complaint(value: Any) -> str | None:
    try:
        upstreams.parse("", value)
    except UpstreamError as error:
        return str(error)
    return None


def problem_of_set(value: Any) -> str | None:
    """Return what is wrong with a set of upstreams, which may be made later (as in RabbitMQ)."""
    if not isinstance(value, list):
        return "must be a list of tables with the key upstream"
    if len(value) > upstreams.UPSTREAMS_OF_EXCHANGE_MAX:
        return f"more than {upstreams.UPSTREAMS_OF_EXCHANGE_MAX} upstreams"
    for entry in value:
        if not isinstance(entry, dict) or not isinstance(entry.get("upstream"), str):
            return "each upstream must be a table with the key upstream, a text"
        overrides = {key: item for key, item in entry.items() if key != "upstream"}
        complaint = (
            "a set cannot override uri"
            if "uri" in overrides
            else _complaint(overrides | {"uri": _ANY_URI})
        )
        if complaint is not None:
            return f"upstream '{entry['upstream'][:255]}': {complaint}"
    return None


def new_queues(
    vhost: str,
    choices: Iterable[tuple[str, Choice]],
    before: Definitions,
    after: Definitions,
) -> list[NewQueue]:
    """Return the links that would use another upstream queue.  choices: of each federated exchange.

    A link that comes or goes is none of them: that is what taking an upstream out of a set, or
    deleting it, is for.
    """
    found = []
    for exchange, choice in choices:
        old, new = upstreams.select(choice, *before)[0], upstreams.select(choice, *after)[0]
        for upstream in old:
            name = upstream.exchange_name(exchange)
            same = [each for each in new if each.name == upstream.name]
            # Of several by one name in a set, that of the same upstream exchange goes on.
            same.sort(key=lambda each: each.exchange_name(exchange) != name)
            if same:
                keys = upstreams.new_queue_keys(upstream, same[0], vhost, exchange)
                if keys:
                    found.append(NewQueue(exchange, upstream.name, tuple(keys)))
    return found
