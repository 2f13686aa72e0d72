"""Exchange types that choose one destination of many: by a hash, or at random.

Pure.  The choice by hash is a function of the bindings and of what is hashed, so it is the same at
every member and after every start.

`x-consistent-hash` is weighted rendezvous hashing (Thaler and Ravishankar, 1998): each destination
draws a number from the hashed value and its own name, and the highest one wins.  A destination that
comes takes its share from the others, and nothing else moves; one that goes leaves its share to
them.  `x-modulus-hash` counts destinations in the order of their names, so most values move when
one comes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, TypeAlias

from brokerd.core.catalog import refusals
from brokerd.core.catalog.catalog_objects import Binding
from brokerd.core.catalog.refusals import Refused

CONSISTENT_HASH = "x-consistent-hash"
MODULUS_HASH = "x-modulus-hash"
RANDOM = "x-random"
LOCAL_RANDOM = "x-local-random"
TYPES: tuple[str, ...] = (CONSISTENT_HASH, MODULUS_HASH, RANDOM, LOCAL_RANDOM)
HASH_HEADER, HASH_PROPERTY = "hash-header", "hash-property"
#: What hash-property may name.
PROPERTIES = ("message_id", "correlation_id", "timestamp")
#: Highest weight of a binding.
WEIGHT_MAX = 10_000

#: (is a queue, name)
Destination: TypeAlias = tuple[bool, str]
#: Tells of a queue, by its name, whether its leader is at the member that routes.
IsLocal: TypeAlias = Callable[[str], bool]
#: Returns a property by its name from the encoded properties of a message, None where it has none.
PropertyOf: TypeAlias = Callable[[bytes, str], object]

_MASK = (1 << 64) - 1
#: 2 to the 64 divided by the golden ratio, odd (Knuth, The Art of Computer Programming, 6.4).
_GOLDEN = 0x9E3779B97F4A7C15
_MIX = 0xD6E8FEB86659FD93


@dataclass(slots=True)
class Asked:
    """What a message says of its way through an exchange."""

    #: Its routing key, then CC and BCC.
    keys: Sequence[str]
    #: None: not looked at.
    headers: Mapping[str, Any] | None = None
    #: All of its properties, encoded; b"": none.
    header: bytes = b""
    property_of: PropertyOf | None = None
    #: None: no queue is local.
    is_local: IsLocal | None = None


def check_exchange(exchange_type: str, arguments: Mapping[str, Any]) -> Refused | None:
    """Refuse a declaration that does not say what is hashed.  arguments: as the catalog's JSON."""
    if exchange_type != CONSISTENT_HASH:
        return None
    header, named = arguments.get(HASH_HEADER), arguments.get(HASH_PROPERTY)
    if header is not None and named is not None:
        return refusals.precondition_failed(
            f"{HASH_HEADER} and {HASH_PROPERTY} are mutually exclusive"
        )
    if header is not None and type(header) is not str:
        return refusals.precondition_failed(f"{HASH_HEADER} must be the name of a header")
    if named is not None and named not in PROPERTIES:
        return refusals.precondition_failed(
            f"Unsupported property: {named}; {HASH_PROPERTY} is one of {', '.join(PROPERTIES)}"
        )
    return None


def check_binding(
    exchange_type: str, routing_key: str, destination_kind: str = "queue"
) -> Refused | None:
    """Refuse a binding of `x-consistent-hash` whose routing key is no weight, and one of
    `x-local-random` that has a key or leads to an exchange, which has no leader.
    """
    if exchange_type == LOCAL_RANDOM:
        if routing_key:
            return refusals.precondition_failed(
                f"Non empty binding '{routing_key}' key not permitted"
            )
        if destination_kind != "queue":
            return refusals.precondition_failed(
                f"An exchange of type {LOCAL_RANDOM} is bound to queues only"
            )
    if exchange_type != CONSISTENT_HASH:
        return None
    is_number = routing_key.isascii() and routing_key.isdigit()
    if not is_number or not 1 <= int(routing_key[:6]) <= WEIGHT_MAX or len(routing_key) > 6:
        return refusals.precondition_failed(
            f"The binding key of an exchange of type {CONSISTENT_HASH} is its weight, "
            f"an integer from 1 to {WEIGHT_MAX}: '{routing_key}'"
        )
    return None


class SpreadIndex:
    """The bindings of one exchange; each destination is there once, whatever leads to it.

    Of several bindings of a destination the oldest one says its weight.
    """

    __slots__ = (
        "_bindings",
        "_choices",
        "_count",
        "_header",
        "_property",
        "_type",
        "needs_headers",
    )

    def __init__(self, exchange_type: str, arguments: Mapping[str, Any]) -> None:
        """arguments: of the exchange, in the catalog's JSON form."""
        self._type = exchange_type
        is_consistent = exchange_type == CONSISTENT_HASH
        self._header: str | None = arguments.get(HASH_HEADER) if is_consistent else None
        self._property: str | None = arguments.get(HASH_PROPERTY) if is_consistent else None
        #: True: each message is routed by itself.
        self.needs_headers = (
            exchange_type in (RANDOM, LOCAL_RANDOM)
            or self._header is not None
            or self._property is not None
        )
        self._bindings: dict[str, tuple[Binding, Destination]] = {}
        #: None: the bindings have changed.
        self._choices: list[tuple[Destination, int, int]] | None = None
        #: Messages that went to a destination at random.
        self._count = 0

    def add(self, binding: Binding, destination: Destination) -> None:
        """Add a binding."""
        self._bindings[binding.name] = binding, destination
        self._choices = None

    def remove(self, binding: Binding, destination: Destination) -> None:
        """Take it back."""
        del self._bindings[binding.name]
        self._choices = None

    def match(self, asked: Asked, found: dict[Destination, None]) -> None:
        """Add the destination that a message goes to; CC and BCC say nothing here."""
        choices = self._choices
        if choices is None:
            choices = self._choices = self._made()
        if self._type == LOCAL_RANDOM:
            is_local = asked.is_local
            # A stored binding to an exchange leads to none.
            choices = [each for each in choices if each[0][0] and is_local and is_local(each[0][1])]
        if not choices:
            return
        if self._type in (RANDOM, LOCAL_RANDOM):
            self._count += 1
            chosen = choices[_mixed(self._count * _GOLDEN) % len(choices)]
        else:
            value = _hash(self._hashed(asked))
            if self._type == MODULUS_HASH:
                chosen = choices[value % len(choices)]
            else:
                chosen = _highest(choices, value)
        found[chosen[0]] = None

    def _hashed(self, asked: Asked) -> bytes:
        """Return what is hashed; what a message does not have has one place for all of them."""
        if self._header is not None:
            value = (asked.headers or {}).get(self._header)
        elif self._property is not None:
            read = asked.property_of
            value = read(asked.header, self._property) if read and asked.header else None
        else:
            value = asked.keys[0]
        if type(value) is bytes:
            return value
        return b"" if value is None else str(value).encode("utf-8", "surrogateescape")

    def _made(self) -> list[tuple[Destination, int, int]]:
        """Return each destination, its number, and its weight, in the order of their names."""
        weights: dict[Destination, int] = {}
        for binding, destination in sorted(self._bindings.values(), key=_age):
            if destination not in weights:
                key = binding.routing_key
                # Others are checked when they are made; a stored one must not stop a route.
                is_weight = check_binding(CONSISTENT_HASH, key) is None
                weights[destination] = int(key) if is_weight else 1
        return [
            (destination, _number_of(destination), weights[destination])
            for destination in sorted(weights)
        ]


def _age(item: tuple[Binding, Destination]) -> tuple[int, str]:
    return item[0].revision, item[0].name


def _number_of(destination: Destination) -> int:
    is_queue, name = destination
    return _hash((b"q" if is_queue else b"e") + name.encode("utf-8", "surrogateescape"))


def _hash(value: bytes) -> int:
    return int.from_bytes(blake2b(value, digest_size=8).digest(), "big")


def _mixed(number: int) -> int:
    """Return a number of 64 bits, each of which depends on all of the given one."""
    number &= _MASK
    number = ((number ^ (number >> 32)) * _MIX) & _MASK
    number = ((number ^ (number >> 32)) * _MIX) & _MASK
    return number ^ (number >> 32)


def _highest(
    choices: list[tuple[Destination, int, int]], value: int
) -> tuple[Destination, int, int]:
    """Return the destination that draws the highest number: -weight / ln(u), 0 < u < 1."""
    best, best_score = choices[0], -1.0
    for choice in choices:
        _, number, weight = choice
        drawn = (_mixed(value ^ number) + 1) / (_MASK + 2)
        score = -weight / math.log(drawn) if drawn < 1.0 else math.inf
        if score > best_score:
            best, best_score = choice, score
    return best
