"""Who may do what: resource and topic permissions (R-PERM, R-TP).

Pure; reads `CatalogState`.  One `Access` per channel or connection; its results are remembered
until any user or permission changes, so a revocation is seen at once (RabbitMQ sees it late,
R-PERM-5).  Of whom a token speaks, no user need be known: identity.py.
"""

from __future__ import annotations

from collections.abc import Iterable

from brokerd.core.catalog import names, patterns, refusals
from brokerd.core.catalog.catalog_objects import Exchange
from brokerd.core.catalog.catalog_state import CatalogState
from brokerd.core.catalog.refusals import Refused

PERMISSIONS = ("configure", "write", "read")
#: Distinct (permission, kind, name) remembered; RabbitMQ keeps 12.
REMEMBERED_MAX = 256


def check_vhost(view: CatalogState, vhost: str, user: str) -> Refused | None:
    """Refuse connection.open to a vhost (R-CON-11, R-ERR-20, R-ERR-21)."""
    if vhost not in view.vhosts:
        return Refused(refusals.NOT_ALLOWED, f"vhost {vhost} not found", True)
    if view.get("permission", vhost, user) is None:
        text = f"access to vhost '{vhost}' refused for user '{user}'"
        return Refused(refusals.NOT_ALLOWED, text, True)
    return None


def _is_granted(pattern: str, name: str) -> bool:
    """R-PERM-1: unanchored; the empty pattern stands for ^$."""
    return not name if pattern == "" else patterns.matches(pattern, name)


class Access:
    """One user's rights in one vhost."""

    __slots__ = ("_remembered", "_revision", "user", "vhost", "view")

    def __init__(self, view: CatalogState, vhost: str, user: str) -> None:
        self.view = view
        self.vhost = vhost
        self.user = user
        self._revision = view.access_revision
        self._remembered: dict[tuple[str, str, str], Refused | None] = {}

    def check(self, permission: str, kind: str, name: str) -> Refused | None:
        """Refuse (403) unless the user has configure, write or read on a queue or exchange."""
        remembered = self._remembered
        if self._revision != self.view.access_revision:
            self._revision = self.view.access_revision
            remembered.clear()
        question = (permission, kind, name)
        if question in remembered:
            return remembered[question]
        if len(remembered) >= REMEMBERED_MAX:
            remembered.clear()
        answer = remembered[question] = self._check(permission, kind, name)
        return answer

    def _check(self, permission: str, kind: str, name: str) -> Refused | None:
        if kind == "queue" and permission != "read" and names.is_delayed_queue(name):
            return refusals.access_refused(
                f"{names.resource(kind, self.vhost, name)} is kept by exchange "
                f"'{names.exchange_of(name)}'; it cannot be declared, bound or deleted"
            )
        # R-PERM-2
        shown = "amq.default" if kind == "exchange" and not name else name
        if self._grants(permission, shown):
            return None
        resource = names.resource(kind, self.vhost, shown)
        return refusals.access_refused(
            f"{permission} access to {resource} refused for user '{self.user}'"
        )

    def _grants(self, permission: str, shown: str) -> bool:
        rights = self.view.spec("permission", self.vhost, self.user)
        return rights is not None and _is_granted(rights[permission], shown)

    def check_vhost(self) -> Refused | None:
        """Refuse if there is no way into the vhost any more."""
        return check_vhost(self.view, self.vhost, self.user)

    def check_any(self, kind: str, name: str) -> Refused | None:
        """Refuse unless the user has any of the three (passive declare, R-EX-5)."""
        if any(self.check(permission, kind, name) is None for permission in PERMISSIONS):
            return None
        return self.check("configure", kind, name)

    def check_topic(
        self, permission: str, exchange: Exchange | None, routing_keys: Iterable[str]
    ) -> Refused | None:
        """Refuse a key that the user's topic permission does not cover (R-TP-1, R-TP-2)."""
        if exchange is None or exchange.routing_type != "topic":
            return None
        record = f"{self.user}|{exchange.name}"
        rights = self.view.spec("topic_permission", self.vhost, record)
        if rights is None:
            return None
        # R-TP-3
        pattern = rights[permission].replace("{username}", patterns.escape(self.user))
        pattern = pattern.replace("{vhost}", patterns.escape(self.vhost))
        for key in routing_keys:
            if not _is_granted(pattern, key):
                return self._topic_refused(permission, exchange, key)
        return None

    def _topic_refused(self, permission: str, exchange: Exchange, key: str) -> Refused:
        resource = names.resource("exchange", self.vhost, exchange.name)
        return refusals.access_refused(
            f"{permission} access to topic '{key}' in {resource} refused for user '{self.user}'"
        )


class Unlimited(Access):
    """All rights in one vhost: the broker's own, for work that its configuration asks for."""

    __slots__ = ()

    def check(self, permission: str, kind: str, name: str) -> Refused | None:
        """Refuse nothing."""
        return None

    def check_topic(
        self, permission: str, exchange: Exchange | None, routing_keys: Iterable[str]
    ) -> Refused | None:
        """Refuse nothing."""
        return None
