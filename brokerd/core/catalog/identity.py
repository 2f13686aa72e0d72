"""Who somebody is once the login is over, and the rights that follow from it.

Two kinds: a user of the catalog, whose rights, limits and tags are looked up by name and may change
at any time; and the subject of a token, who need be no user: name, tags and rights are those of the
token, as long as that is good.  Limits on connections and channels go by name in both cases
(R-CON-12).

Pure.  Made in server/access, carried by connections and calls.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from brokerd.core.catalog import refusals
from brokerd.core.catalog.catalog_objects import Exchange
from brokerd.core.catalog.catalog_state import CatalogState
from brokerd.core.catalog.permissions import Access
from brokerd.core.catalog.refusals import Refused
from brokerd.core.catalog.scopes import Scopes


@dataclass(slots=True, frozen=True)
class Identity:
    """Who has logged in."""

    user: str
    tags: tuple[str, ...] = ()
    #: The rights of a token; None: those of the user in the catalog.
    scopes: Scopes | None = None
    #: When the token ends, Unix milliseconds; None: never, since it was none.
    expires_ms: int | None = None

    @property
    def is_by_token(self) -> bool:
        """Tell whether it came with a token, which has an end and can be renewed."""
        return self.expires_ms is not None

    def is_gone(self, view: CatalogState) -> bool:
        """Tell whether the user has been deleted; whom a token speaks of cannot be."""
        return self.scopes is None and view.user(self.user) is None

    def tags_in(self, view: CatalogState) -> tuple[str, ...]:
        """Return the tags as of now."""
        if self.scopes is not None:
            return self.tags
        user = view.user(self.user)
        return () if user is None else tuple(user.tags)

    def access(self, view: CatalogState, vhost: str) -> Access:
        """Return the rights in a vhost."""
        if self.scopes is None:
            return Access(view, vhost, self.user)
        return ScopedAccess(view, vhost, self.user, self.scopes)


class ScopedAccess(Access):
    """The rights of a token in one vhost; they stay what they are."""

    __slots__ = ("_scopes",)

    def __init__(self, view: CatalogState, vhost: str, user: str, scopes: Scopes) -> None:
        super().__init__(view, vhost, user)
        self._scopes = scopes.within(vhost)

    def _grants(self, permission: str, shown: str) -> bool:
        return any(scope.name.matches(shown) for scope in self._scopes.get(permission, ()))

    def check_vhost(self) -> Refused | None:
        """Refuse unless any scope is for this vhost."""
        if self.vhost not in self.view.vhosts:
            return Refused(refusals.NOT_ALLOWED, f"vhost {self.vhost} not found", True)
        if not self._scopes:
            text = f"access to vhost '{self.vhost}' refused for user '{self.user}'"
            return Refused(refusals.NOT_ALLOWED, text, True)
        return None

    def check_topic(
        self, permission: str, exchange: Exchange | None, routing_keys: Iterable[str]
    ) -> Refused | None:
        """Refuse a key that no scope names: as in RabbitMQ, one of two places names none."""
        if exchange is None or exchange.routing_type != "topic":
            return None
        keyed = [
            scope.routing_key
            for scope in self._scopes.get(permission, ())
            if scope.routing_key is not None and scope.name.matches(exchange.name)
        ]
        for key in routing_keys:
            if not any(pattern.matches(key) for pattern in keyed):
                return self._topic_refused(permission, exchange, key)
        return None
