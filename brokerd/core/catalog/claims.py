"""What the claims of a token say: for whom it is, for how long, and who somebody is by it.

The caller (server/access/tokens.py) has verified the signature; claims are still input from outside
and may be of any JSON type.  Words and order are those of RabbitMQ's OAuth 2 plugin
(rabbit_auth_backend_oauth2.erl of its main branch).

Pure.  Refusals are values: which of login_records.REASONS it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from brokerd.core.catalog.identity import Identity
from brokerd.core.catalog.scopes import SCOPES_MAX, Scopes

Claims = Mapping[str, Any]

#: The last second of the year 9999: what is later is as good as this.
EXPIRES_S_MAX = 253_402_300_799
USER_BYTES_MAX = 255
#: Tags of one token, and bytes of a tag.
TAGS_MAX, TAG_BYTES_MAX = 32, 64
#: Where a requesting party token (Keycloak) has scopes.
_PARTY = "authorization.permissions.scopes"
#: Maps and lists on the way to additional scopes that are looked at.
_STEPS_MAX = 10_000
_SERVICE_ACCOUNT = "system:serviceaccount:"


class Problem(StrEnum):
    """Why a token is none of ours."""

    UNREADABLE = "token_unreadable"
    ALGORITHM = "token_algorithm"
    ISSUER = "token_issuer"
    KEY = "token_key"
    ISSUER_AWAY = "token_issuer_away"
    SIGNATURE = "token_signature"
    EXPIRED = "token_expired"
    NOT_YET = "token_not_yet"
    AUDIENCE = "token_audience"
    SCOPES = "token_scopes"
    USER = "token_user"


@dataclass(slots=True, frozen=True)
class Times:
    """When a token is good."""

    #: Unix milliseconds, the leeway included.
    expires_ms: int


def check_times(claims: Claims, now_ms: int, leeway_s: int) -> Times | Problem:
    """Check `exp`, which must be there, and `nbf`, which may be (RFC 7519 section 4.1)."""
    expires, not_before = claims.get("exp"), claims.get("nbf", 0)
    if expires is None or not _is_number(expires) or not _is_number(not_before):
        return Problem.UNREADABLE
    expires_ms = (min(int(expires), EXPIRES_S_MAX) + leeway_s) * 1000
    if expires_ms <= now_ms:
        return Problem.EXPIRED
    # Not multiplied: it may be any number.
    if not_before - leeway_s > now_ms / 1000:
        return Problem.NOT_YET
    return Times(expires_ms)


def _is_number(value: Any) -> bool:
    """Tell whether it is a number that can be compared; JSON of Python's reads NaN, too."""
    if type(value) is int:
        return abs(value) < 1 << 64
    return type(value) is float and abs(value) < 1 << 64


def names_audience(claims: Claims, audience: str) -> bool:
    """Tell whether `aud` names us: a list, or a text with spaces between several."""
    found = claims.get("aud")
    return audience in (found.split() if isinstance(found, str) else _texts(found))


@dataclass(slots=True, frozen=True)
class OAuthRules:
    """How tokens of an OAuth 2 server are read; the words are RabbitMQ's."""

    resource_server_id: str
    #: Before each scope that is meant for this broker.
    scope_prefix: str
    verify_aud: bool = True
    #: Claims with more scopes: paths, with dots between their steps.
    additional_scopes_key: tuple[str, ...] = ()
    #: Other names of scopes, each for one or more, prefix included.
    scope_aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    preferred_username_claims: tuple[str, ...] = ("sub", "client_id")

    def identity(self, claims: Claims, times: Times) -> Identity | Problem:
        """Return who it is, with the rights of its scopes."""
        if self.verify_aud and not names_audience(claims, self.resource_server_id):
            return Problem.AUDIENCE
        user = self._user(claims)
        if user is None:
            return Problem.USER
        scopes = self._scopes(claims)
        if scopes is None:
            return Problem.SCOPES
        tags = sorted(
            tag
            for scope in scopes
            if scope.startswith("tag:") and 0 < len(tag := scope[4:]) <= TAG_BYTES_MAX
        )
        return Identity(user, tuple(tags[:TAGS_MAX]), Scopes.of(scopes), times.expires_ms)

    def _user(self, claims: Claims) -> str | None:
        for claim in self.preferred_username_claims:
            found = claims.get(claim)
            if isinstance(found, str):
                return found if is_name(found) else None
        return "unknown"

    def _scopes(self, claims: Claims) -> list[str] | None:
        """Return the scopes without their prefix, in order and once; None: too many."""
        found = _texts_of(claims.get("scope"), self.resource_server_id)
        for path in (_PARTY, *self.additional_scopes_key):
            found += _at(claims, path, self.resource_server_id)
            if len(found) > SCOPES_MAX:
                return None
        if self.scope_aliases:
            found += [each for text in found for each in self.scope_aliases.get(text, ())]
        prefix = self.scope_prefix
        ours = sorted({text.removeprefix(prefix) for text in found if text.startswith(prefix)})
        return ours if len(ours) <= SCOPES_MAX else None


def _at(claims: Claims, path: str, resource_server_id: str) -> list[str]:
    """Return the scopes at a path; lists on the way are gone through."""
    layer: list[Any] = [claims]
    for step in path.split("."):
        # Lists are gone into once: one in another has no names.
        maps = [
            each
            for item in layer
            for each in (item if isinstance(item, list) else (item,))
            if isinstance(each, dict)
        ]
        if len(maps) > _STEPS_MAX:
            return []
        layer = [each[step] for each in maps if step in each]
    return [text for value in layer for text in _texts_of(value, resource_server_id)]


def _texts_of(value: Any, resource_server_id: str) -> list[str]:
    """Return scopes: a list, words in a text, or those of our name in a map, without a prefix."""
    if isinstance(value, str):
        return value.split(" ")
    if isinstance(value, dict):
        inner = value.get(resource_server_id)
        words = inner.split(" ") if isinstance(inner, str) else _texts(inner)
        return [f"{resource_server_id}.{word}" for word in words if word]
    return _texts(value)


def _texts(value: Any) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def is_name(text: str) -> bool:
    """Tell whether a claim can be a user's name: short, and nothing that breaks a line of a log."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return False
    return 0 < size <= USER_BYTES_MAX and text.isprintable()


def service_account(claims: Claims) -> str | None:
    """Return NAMESPACE/NAME of the ServiceAccount that a token of Kubernetes speaks of."""
    subject = claims.get("sub")
    if not isinstance(subject, str) or not subject.startswith(_SERVICE_ACCOUNT):
        return None
    parts = subject.removeprefix(_SERVICE_ACCOUNT).split(":")
    return "/".join(parts) if len(parts) == 2 and all(parts) and is_name(subject) else None
