"""One request of the management API as its handler sees it, and what a handler answers.

The door (door.py) has found the route, let the caller in and checked the right before a handler
runs.  Nothing here knows HTTP's wire but status and headers.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from brokerd.core.catalog.identity import Identity
from brokerd.core.catalog.refusals import ACCESS_REFUSED, NOT_FOUND, Refused
from brokerd.server.catalog.audit import Author

if TYPE_CHECKING:
    from brokerd.core.catalog.catalog_state import CatalogState
    from brokerd.core.catalog.permissions import Access
    from brokerd.server.catalog.topology_batch import Room
    from brokerd.server.management.ports import ManagementServices

Json: TypeAlias = dict[str, Any]

#: Objects and arrays in each other; RabbitMQ's own bodies need five.
DEPTH_MAX = 64
#: Integers of AMQP have 64 bits.
INTEGER_MIN, INTEGER_MAX = -(2**63), 2**63 - 1
#: Values of one body: definitions of 100,000 queues.  What C makes of more keeps all else waiting.
VALUES_MAX = 1_000_000
#: Values of one body between two ends of objects: C's parser holds the GIL meanwhile.
RUN_MAX = 50_000
#: A longer body is parsed beside the loop; this much takes up to 20 ms.
PARSED_HERE_BYTES_MAX = 128 * 1024
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)

ADMINISTRATOR, MONITORING = "administrator", "monitoring"
POLICYMAKER, MANAGEMENT = "policymaker", "management"


class HttpError(Exception):
    """The request is refused; rendered as RabbitMQ does: {"error": …, "reason": …}."""

    def __init__(
        self, status: int, error: str, reason: Any, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(f"{status} {error}: {reason}")
        self.status = status
        self.error = error
        self.reason = reason
        self.headers = dict(headers or {})


def bad_request(reason: Any, error: str = "bad_request") -> HttpError:
    """Return a 400."""
    return HttpError(400, error, reason)


def not_found() -> HttpError:
    """Return the 404 of what a path names."""
    return HttpError(404, "Object Not Found", "Not Found")


def not_authorised(reason: str) -> HttpError:
    """Return what RabbitMQ answers who is known and may not: 401, spelled so."""
    return HttpError(401, "not_authorised", reason)


def unavailable(reason: str) -> HttpError:
    """Return a 503: no majority, or no leader in time."""
    return HttpError(503, "unavailable", reason)


def refused(refusal: Refused) -> HttpError:
    """Return what RabbitMQ's plugin makes of AMQP's refusal of a declare, delete or bind."""
    if refusal.code == ACCESS_REFUSED:
        return not_authorised(refusal.text)
    if refusal.code == NOT_FOUND:
        return HttpError(404, "not_found", refusal.text)
    return bad_request(refusal.text)


@dataclass(slots=True, frozen=True)
class Caller:
    """Who calls."""

    identity: Identity
    #: Address and port, for the log.
    address: str = ""
    #: Over TLS.
    is_tls: bool = False

    @property
    def user(self) -> str:
        """Return the name."""
        return self.identity.user

    @property
    def tags(self) -> frozenset[str]:
        """Return the tags, as of the login."""
        return frozenset(self.identity.tags)

    @property
    def is_by_token(self) -> bool:
        """Tell whether it is known by a token, and not by the catalog."""
        return self.identity.scopes is not None

    def is_user_of(self, view: CatalogState) -> bool:
        """Tell whether it is a user of the catalog, and not one of a token with that name."""
        return self.identity.scopes is None and view.user(self.user) is not None

    @property
    def author(self) -> Author:
        """Return on whose behalf changes are made."""
        return Author(self.user, "https" if self.is_tls else "http", self.address)

    @property
    def is_management(self) -> bool:
        """Tell whether it may use the API at all."""
        return bool(self.tags & {ADMINISTRATOR, MONITORING, POLICYMAKER, MANAGEMENT})

    @property
    def is_monitor(self) -> bool:
        """Tell whether it may see the nodes."""
        return bool(self.tags & {ADMINISTRATOR, MONITORING})

    @property
    def is_policymaker(self) -> bool:
        """Tell whether it may change policies and parameters."""
        return bool(self.tags & {ADMINISTRATOR, POLICYMAKER})

    @property
    def is_administrator(self) -> bool:
        """Tell whether it may do everything."""
        return ADMINISTRATOR in self.tags


@dataclass(slots=True)
class Answer:
    """What a handler answers: JSON by default."""

    status: int = 200
    #: JSON; `raw` and `text` count where they are not None.
    value: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    text: str | None = None
    content_type: str = "application/json"
    #: JSON as it is sent, in parts: of long lists, whose rows are not to be there all at once.
    raw: list[bytes] | None = None

    @property
    def has_body(self) -> bool:
        """Tell whether there is anything to send but the status."""
        found = (self.value, self.raw, self.text)
        return self.status == 200 or any(each is not None for each in found)


def created(location: str | None = None) -> Answer:
    """Return a 201."""
    return Answer(201, headers={} if location is None else {"Location": location})


def no_content() -> Answer:
    """Return a 204."""
    return Answer(204)


@dataclass(slots=True)
class Call:
    """One request."""

    services: ManagementServices
    caller: Caller
    method: str
    #: What stands in the braces of the route's path, decoded.
    parts: Mapping[str, str]
    #: Of names that come twice, the last.
    query: Mapping[str, str]
    #: In lower case.
    headers: Mapping[str, str]
    #: Reads the body, once: at most as much as is allowed.
    read: Callable[[], Awaitable[bytes]]
    #: Over TLS.
    is_tls: bool = False
    #: Tells whether the client has gone away.
    is_gone: Callable[[], bool] = lambda: False

    @property
    def vhost(self) -> str:
        """Return the vhost of the path, "" if it has none."""
        return self.parts.get("vhost", "")

    @property
    def access(self) -> Access:
        """Return the caller's rights in the path's vhost."""
        return self.services.admission.access(self.caller.identity, self.vhost)

    @property
    def objects(self) -> Room:
        """Return what makes and deletes objects on the caller's behalf."""
        return self.services.objects.by(self.caller.author)

    @property
    def as_4_3(self) -> bool:
        """Tell whether answers are RabbitMQ 4.3's where 3.10 has others."""
        return self.services.profile.management_as_4_3

    def may_enter(self, vhost: str) -> bool:
        """Tell whether the caller could open this vhost over AMQP."""
        return self.services.admission.access(self.caller.identity, vhost).check_vhost() is None

    def may_see(self, vhost: str) -> bool:
        """Tell whether lists show the caller what is in a vhost."""
        return self.caller.is_monitor or self.may_enter(vhost)

    def visible_vhosts(self) -> list[str]:
        """Return the vhosts of lists: the path's, or all that the caller may see, in order."""
        vhosts = self.services.catalog.view.vhosts
        if "vhost" in self.parts:
            return [self.vhost] if self.vhost in vhosts else []
        return [vhost for vhost in sorted(vhosts) if self.may_see(vhost)]

    def check_vhost(self) -> None:
        """Raise what RabbitMQ answers to a write into a vhost that is not there."""
        if self.vhost not in self.services.catalog.view.vhosts:
            raise HttpError(404, "not_found", "vhost_not_found")

    async def body(self) -> Json:
        """Return the body, which is a JSON object or empty; HttpError."""
        return await parsed(await self.read())

    async def needed(self, *names: str) -> Json:
        """Return a body that has these fields; a 400 names those that are missing."""
        found = await self.body()
        missing = [f"{{key_missing,{name}}}" for name in names if name not in found]
        if missing:
            raise bad_request(f"[{','.join(missing)}]")
        return found

    def is_on(self, name: str) -> bool:
        """Tell whether a parameter of the query says true."""
        return self.query.get(name, "").lower() == "true"


Handler: TypeAlias = Callable[[Call], Awaitable[Answer]]


async def parsed(raw: bytes) -> Json:
    """Return what parse_object does; of a long body beside the loop."""
    if len(raw) > PARSED_HERE_BYTES_MAX:
        return await asyncio.to_thread(parse_object, raw)
    return parse_object(raw)


def parse_object(raw: bytes) -> Json:
    """Return a body as a JSON object; empty stands for {}.  Raises HttpError."""
    if not raw.strip():
        return {}
    value = parse(raw)
    if not isinstance(value, dict):
        raise bad_request("not_json")
    return value


def parse(raw: bytes) -> Any:
    """Return a body as JSON that everything behind can take; HttpError: 400."""
    _check_size(raw)
    try:
        value = json.loads(raw.decode(), parse_constant=_no_number, object_hook=_as_it_is)
    except (ValueError, RecursionError) as error:
        raise bad_request("not_json") from error
    _check(value)
    return value


def _as_it_is(found: Json) -> Json:
    """C's parser holds the interpreter; here others get a turn."""
    return found


def _check_size(raw: bytes) -> None:
    """Refuse what would hold the interpreter for long, before anything is made of it."""
    if not _has_too_many(raw):
        return
    # What stands in strings counts for nothing: a payload may be megabytes of CSV.
    bare = _STRING.sub(b"", raw)
    if _separators(bare) > VALUES_MAX:
        raise bad_request(f"more than {VALUES_MAX} values")
    if _has_too_many(bare):
        raise bad_request(f"more than {RUN_MAX} values in one list or object")


def _has_too_many(raw: bytes) -> bool:
    if _separators(raw) > VALUES_MAX:
        return True
    return len(raw) > RUN_MAX and max(map(_separators, raw.split(b"}"))) > RUN_MAX


def _separators(part: bytes) -> int:
    return part.count(b",") + part.count(b"[") + part.count(b"{")


def _no_number(text: str) -> Any:
    raise ValueError(text)


def _check(value: Any) -> None:
    """Refuse what is too deep, integers of more than 64 bits, and text that is not Unicode."""
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > DEPTH_MAX:
            raise bad_request(f"nested deeper than {DEPTH_MAX}")
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below += item.keys()
                below += item.values()
            elif isinstance(item, list):
                below += item
            elif isinstance(item, str):
                if not item.isascii():
                    _check_text(item)
            elif type(item) is int and not INTEGER_MIN <= item <= INTEGER_MAX:
                raise bad_request("integer of more than 64 bits")
        level = below


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise bad_request("text with half of a surrogate pair") from error
