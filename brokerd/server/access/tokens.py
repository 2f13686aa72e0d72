"""Tokens in the place of passwords: JSON Web Tokens of an OAuth 2 server or of Kubernetes.

Signatures are verified by PyJWT with a key whose kind says which algorithms it can check; what a
token itself says of that must agree, and `none` and shared secrets never do.  What the claims mean
is decided in core/catalog/claims.py.  Used by authentication.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jwt

from brokerd.core.catalog import claims as token_claims
from brokerd.core.catalog.claims import Claims, OAuthRules, Problem, Times
from brokerd.core.catalog.identity import Identity
from brokerd.server.access.token_keys import IssuerAway, Source, TokenKeys

if TYPE_CHECKING:
    from brokerd.config import KubernetesConfig, OAuthConfig
    from brokerd.core.catalog.catalog_objects import User
    from brokerd.core.catalog.catalog_state import CatalogState

#: What a tag of a user begins with that names a ServiceAccount.
ACCOUNT_TAG = "serviceaccount:"

#: From claims whose token is good to who it is.
Judge = Callable[[Claims, Times], Identity | Problem]


class ServiceAccounts:
    """Whom ServiceAccounts stand for: users say so in their tags, `serviceaccount:NAMESPACE/NAME`.

    State: the names of users by account, as of a revision of the users.  An account that two users
    name stands for neither.
    """

    def __init__(self, view: CatalogState) -> None:
        self._view = view
        self._revision: int | None = None
        self._names: dict[str, str] = {}

    def user(self, account: str) -> User | None:
        """Return the user of NAMESPACE/NAME."""
        view = self._view
        if self._revision != view.access_revision:
            self._revision = view.access_revision
            self._names = {}
            for record in view.records("user"):
                for tag in record.spec()["tags"]:
                    if tag.startswith(ACCOUNT_TAG):
                        name = tag.removeprefix(ACCOUNT_TAG)
                        self._names[name] = "" if name in self._names else record.name
        return view.user(self._names.get(account, ""))


@dataclass(slots=True, frozen=True)
class Issuer:
    """One who makes tokens for this broker."""

    #: What `iss` must be; "": anything.
    name: str
    keys: TokenKeys
    algorithms: frozenset[str]
    leeway_s: int
    judge: Judge


class Tokens:
    """State: none of its own; the issuers' keys have theirs."""

    def __init__(self, issuers: list[Issuer], clock_ms: Callable[[], int]) -> None:
        """issuers: those with a name first; the first whose name fits is asked.

        clock_ms() is the wall clock.
        """
        self.issuers = issuers
        self._clock_ms = clock_ms

    async def identify(self, token: str) -> Identity | Problem:
        """Return who a token speaks of, or why it is refused."""
        try:
            header = jwt.get_unverified_header(token)
            # Only to find who must have signed it; it is read again once that is known.
            stated = _claims(jwt.PyJWS().decode_complete(token, options=_UNVERIFIED)["payload"])
        except (jwt.PyJWTError, ValueError, RecursionError):
            return Problem.UNREADABLE
        name = stated.get("iss")
        issuer = next((each for each in self.issuers if each.name in ("", name)), None)
        if issuer is None:
            return Problem.ISSUER
        return await self._verified(issuer, token, header)

    async def _verified(
        self, issuer: Issuer, token: str, header: Mapping[str, Any]
    ) -> Identity | Problem:
        algorithm, key_id = header.get("alg"), header.get("kid", "")
        if not isinstance(algorithm, str) or algorithm not in issuer.algorithms:
            return Problem.ALGORITHM
        if not isinstance(key_id, str):
            return Problem.UNREADABLE
        try:
            key = await issuer.keys.find(key_id)
        except IssuerAway:
            return Problem.ISSUER_AWAY
        if key is None:
            return Problem.KEY
        if algorithm not in key.algorithms:
            return Problem.ALGORITHM
        try:
            payload = jwt.PyJWS().decode(token, key.public, algorithms=[algorithm])
            claims = _claims(payload)
        except jwt.InvalidSignatureError:
            return Problem.SIGNATURE
        except (jwt.PyJWTError, ValueError, RecursionError):
            return Problem.UNREADABLE
        times = token_claims.check_times(claims, self._clock_ms(), issuer.leeway_s)
        return times if isinstance(times, Problem) else issuer.judge(claims, times)


_UNVERIFIED: Any = {"verify_signature": False}


def _claims(payload: bytes) -> dict[str, Any]:
    """Return the JSON object of a payload; ValueError, RecursionError."""
    found = json.loads(payload)
    if not isinstance(found, dict):
        raise ValueError("no object")
    return found


def of_config(
    oauth2: OAuthConfig,
    kubernetes: KubernetesConfig,
    view: CatalogState,
    clock_ms: Callable[[], int],
) -> Tokens | None:
    """Return what is configured, None for nothing; ConfigError where a file cannot be used."""
    issuers = []
    if kubernetes.is_on:
        issuers.append(_kubernetes(kubernetes, view))
    if oauth2.is_on:
        issuers.append(_oauth2(oauth2))
    return Tokens(issuers, clock_ms) if issuers else None


def _oauth2(config: OAuthConfig) -> Issuer:
    rules = OAuthRules(
        config.resource_server_id,
        config.prefix,
        config.verify_aud,
        tuple(config.additional_scopes_key.split()),
        {alias: tuple(scopes.split()) for alias, scopes in config.scope_aliases.items()},
        tuple(config.preferred_username_claims.split()),
    )
    source = Source(
        config.signing_keys,
        config.jwks_url,
        config.issuer,
        config.cacertfile,
        config.allow_http,
    )
    keys = TokenKeys(source, config.is_url_allowed)
    algorithms = frozenset(config.algorithms.split())
    return Issuer(config.issuer, keys, algorithms, config.leeway_s, rules.identity)


def _kubernetes(config: KubernetesConfig, view: CatalogState) -> Issuer:
    accounts, audience = ServiceAccounts(view), config.audience

    def judge(claims: Claims, times: Times) -> Identity | Problem:
        if not token_claims.names_audience(claims, audience):
            return Problem.AUDIENCE
        account = token_claims.service_account(claims)
        user = None if account is None else accounts.user(account)
        if user is None:
            return Problem.USER
        return Identity(user.name, tuple(user.tags), None, times.expires_ms)

    source = Source(
        {},
        config.jwks_url,
        cacertfile=config.cacertfile,
        allow_http=config.allow_http,
        token_file=config.token_file,
    )
    keys = TokenKeys(source, config.is_url_allowed)
    return Issuer(config.issuer, keys, frozenset({"RS256", "ES256"}), config.leeway_s, judge)
