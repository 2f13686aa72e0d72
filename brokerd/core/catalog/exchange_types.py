"""The exchange types: which there are, what a binding to one must look like, and how a headers
binding matches.

Pure.  Indexes over many bindings are in `bindings.py`, the walk over exchanges in `router.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from brokerd.core.catalog import arguments, delayed_type, federation_type, spread
from brokerd.core.catalog.refusals import Refused, precondition_failed
from brokerd.core.catalog.topic_trie import words_of

TYPES: tuple[str, ...] = (
    "direct",
    "fanout",
    "headers",
    "topic",
    *spread.TYPES,
    federation_type.TYPE,
    delayed_type.TYPE,
)
_X_MATCHES = ("all", "any", "all-with-x", "any-with-x")


def check_binding(
    exchange_type: str,
    routing_key: str,
    binding_arguments: Mapping[str, Any],
    hash_words_max: int,
    destination_kind: str,
) -> Refused | None:
    """Refuse what the source's type cannot match (R-BND-8, R-RT-H3).

    exchange_type: by which it routes.
    hash_words_max: switch topic.max_hash_words, 0 for no limit.
    """
    if exchange_type == "headers" and "x-match" in binding_arguments:
        value = binding_arguments["x-match"]
        if type(value) is not str:
            return precondition_failed(
                f"Invalid x-match field type {arguments.type_name(value)} "
                f"(value {arguments.shown(value)}); expected longstr"
            )
        if value not in _X_MATCHES:
            return precondition_failed(
                f'Invalid x-match field value <<"{value}">>; '
                "expected all, any, all-with-x, or any-with-x"
            )
    if exchange_type == "topic" and hash_words_max:
        count = words_of(routing_key).count("#")
        if count > hash_words_max:
            return precondition_failed(
                f"Topic binding key '{routing_key}' uses {count} '#' wildcards, "
                f"at most {hash_words_max} are allowed"
            )
    return spread.check_binding(exchange_type, routing_key, destination_kind)


def check_exchange(
    name: str, exchange_type: str, exchange_arguments: Mapping[str, Any]
) -> Refused | None:
    """Refuse arguments that an exchange of the type could not work with."""
    if exchange_type == delayed_type.TYPE:
        refused = delayed_type.check_exchange(name, exchange_arguments, TYPES)
        if refused is not None:
            return refused
        exchange_type = delayed_type.routing_type(exchange_type, exchange_arguments)
    if exchange_type == federation_type.TYPE:
        return federation_type.check_arguments(exchange_arguments)
    return spread.check_exchange(exchange_type, exchange_arguments)


class HeadersMatch:
    """A headers binding's criteria, prepared once (R-RT-H1 to R-RT-H5).

    An x-match that could not be declared counts as `all`, so that no stored binding can make
    routing fail.
    """

    __slots__ = ("criteria", "is_any")

    def __init__(self, binding_arguments: Mapping[str, Any]) -> None:
        mode = binding_arguments.get("x-match", "all")
        with_x = mode in ("all-with-x", "any-with-x")
        self.is_any = mode in ("any", "any-with-x")
        self.criteria = tuple(
            (key, value)
            for key, value in sorted(binding_arguments.items())
            if key != "x-match" and (with_x or not key.startswith("x-"))
        )

    def matches(self, headers: Mapping[str, Any], loose: bool) -> bool:
        """Say whether a message with these headers goes this way.

        loose: only the value counts, not its type octet, as in 3.10: 1 equals 1.0 and the
        timestamp 1, text equals the same bytes (R-RT-H4).
        """
        if self.is_any:
            return any(_holds(key, value, headers, loose) for key, value in self.criteria)
        return all(_holds(key, value, headers, loose) for key, value in self.criteria)


_NUMBERS = (int, float)


def _holds(key: str, wanted: Any, headers: Mapping[str, Any], loose: bool) -> bool:
    if key not in headers:
        return False
    if wanted is None:
        # R-RT-H2: a void criterion asks for presence only.
        return True
    found = headers[key]
    kind = type(wanted)
    if kind is type(found) and (kind is str or kind is int or kind is bool or kind is float):
        return bool(found == wanted)
    # Other types are rare: compared structurally in the catalog's JSON form.
    found = arguments.to_json(found)
    if loose:
        return _equal_values(found, wanted)
    # As 4.3.6, text and the same bytes meet each other; all else is equal in its type.
    text = _text_of(found)
    if text is not None:
        return text == _text_of(wanted)
    return arguments.are_equal(found, wanted)


def _text_of(value: Any) -> str | None:
    """Return text, and bytes as text; None for anything else."""
    plain = _without_type(value)
    return plain if type(plain) is str else None


def _equal_values(found: Any, wanted: Any) -> bool:
    found, wanted = _without_type(found), _without_type(wanted)
    if type(found) in _NUMBERS and type(wanted) in _NUMBERS:
        return bool(found == wanted)
    return arguments.are_equal(found, wanted)


def _without_type(value: Any) -> Any:
    """Return a timestamp as its number and bytes as text; all else as it is."""
    if type(value) is dict and len(value) == 1:
        plain = arguments.from_json(value)
        if type(plain) is int:
            return plain
        if type(plain) is bytes:
            return plain.decode("utf-8", "surrogateescape")
    return value
