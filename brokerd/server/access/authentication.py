"""Who somebody is: passwords, tokens and certificates, for AMQP connections and calls alike.

Hashing is password_checker.py's, what may be opened afterwards admission.py's; here the member's
view of users decides.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from brokerd.core.catalog import catalog_commands
from brokerd.core.catalog.claims import Problem
from brokerd.core.catalog.identity import Identity
from brokerd.core.unauthenticated import source_of
from brokerd.server.access import auth, login_records
from brokerd.server.access.login_records import Client, LoginRecords
from brokerd.server.access.password_checker import NotChecked, PasswordChecker

if TYPE_CHECKING:
    from brokerd.config import AuthConfig
    from brokerd.core.catalog.catalog_objects import User
    from brokerd.core.catalog.catalog_state import CatalogState
    from brokerd.server.access.tokens import Tokens


#: Where questions come from (`enquire`): those who ask share one place among the addresses.
_ENQUIRIES = "enquiries"


class Variables(Protocol):
    """Settings that may change at run time."""

    #: Users who may log in from this machine only (R-CON-7).
    loopback_users: list[str]


class Authenticator:
    """State: none of its own; `records` has what became of each login."""

    def __init__(
        self,
        view: CatalogState,
        checker: PasswordChecker,
        records: LoginRecords,
        variables: Variables,
        settings: AuthConfig,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        write_later: Callable[[dict[str, Any]], None],
        tokens: Tokens | None = None,
    ) -> None:
        """spawn(work) runs a task beside; write_later(operation) changes the catalog without
        waiting for the answer.  tokens: those that are taken for passwords, None for none.
        """
        self.records = records
        self._view = view
        self._checker = checker
        self._variables = variables
        self._settings = settings
        self._spawn = spawn
        self._write_later = write_later
        self._tokens = tokens

    async def authenticate(
        self, credentials: auth.Credentials | None, client: Client
    ) -> Identity | None:
        """Return who it is, or None; all refusals of a password take the same time (SEC-9).

        Raises NotChecked where too many logins came at once; what is refused is recorded.
        """
        if credentials is None:
            self.records.refuse(client, "?", login_records.UNREADABLE)
            return None
        if self._tokens is not None and credentials.is_token:
            return await self._by_token(self._tokens, credentials, client)
        source = source_of(client.address)
        try:
            user = await self._checked(credentials, source, client.connection)
        except NotChecked:
            self.records.refuse(client, credentials.user, login_records.UNCHECKED)
            raise
        except asyncio.CancelledError:
            self.records.refuse(client, credentials.user, login_records.ABANDONED)
            raise
        if user is None:
            self.records.refuse(client, credentials.user, login_records.CREDENTIALS)
            return None
        login = self._at(_identity(user), client)
        if (
            login is not None
            and auth.is_imported(user.password_hash)
            and not self._checker.is_current(user.password_hash)
            # While two passwords are valid it is not known which of them this was: the old one
            # must not become the new one.
            and len(user.accepted_hashes(_now_ms())) == 1
            and self._checker.begin_renewal(user.name)
        ):
            self._spawn(self._renew(user, credentials.password))
        return login

    async def _by_token(
        self, tokens: Tokens, credentials: auth.Credentials, client: Client
    ) -> Identity | None:
        found = await tokens.identify(credentials.password)
        if isinstance(found, Problem):
            self.records.refuse(client, credentials.user, found)
            return None
        return self._at(found, client)

    async def renew(self, identity: Identity, secret: bytes, client: Client) -> Identity | None:
        """Return who it is by a new token in the place of that of a login; None: refused.

        It must name the same user, as in RabbitMQ.  Refusals are recorded.
        """
        credentials = auth.credentials("", secret.decode("utf-8", "surrogateescape"))
        if credentials is None or self._tokens is None:
            # Without a user's name, only a token is anything.
            self.records.refuse(client, identity.user, Problem.UNREADABLE)
            return None
        found = await self._tokens.identify(credentials.password)
        if isinstance(found, Identity) and found.user != identity.user:
            found = Problem.USER
        if isinstance(found, Problem):
            self.records.refuse(client, identity.user, found)
            return None
        return found

    async def enquire(self, credentials: auth.Credentials | None) -> Identity | None:
        """Return who it is where a password is right, for somebody who only asks."""
        if credentials is None:
            return None
        if self._tokens is not None and credentials.is_token:
            found = await self._tokens.identify(credentials.password)
            return None if isinstance(found, Problem) else found
        user = await self._checked(credentials, _ENQUIRIES, "")
        return None if user is None else _identity(user)

    async def _checked(
        self, credentials: auth.Credentials, source: str, connection: str
    ) -> User | None:
        user = self._view.user(credentials.user)
        accepted = user.accepted_hashes(_now_ms()) if user is not None else ()
        # One check of all of them: the old password is no wrong one until its time is over.
        stored = " ".join(accepted) or None
        is_right = await self._checker.login(credentials, stored, source, connection)
        return user if is_right else None

    def _at(self, identity: Identity, client: Client) -> Identity | None:
        """R-CON-7: some users only from this machine, whatever says that it is them."""
        user = identity.user
        is_here = auth.is_loopback(client.address) and not client.is_from_afar
        if user in self._variables.loopback_users and not is_here:
            self.records.refuse(client, user, login_records.LOOPBACK)
            return None
        self.records.accept(client)
        return identity

    async def _renew(self, user: User, password: str) -> None:
        """SEC-14: now that the password is known, an imported hash makes way for one of ours.

        Not where the user is somebody's resource: its hash is what was asked for.
        """
        try:
            if user.owner is None:
                spec = user.value | {"password_hash": await self._checker.hash(password)}
                precondition = {"hash": user.hash()}
                self._write_later(
                    catalog_commands.put(
                        "user", "", user.name, spec, cause="login", precondition=precondition
                    )
                )
        finally:
            self._checker.end_renewal(user.name)

    def may_send_password(self, tls: bool, address: str) -> bool:
        """Tell whether a client on this connection may log in with a password (SEC-7)."""
        rule = self._settings.passwords_without_tls
        return tls or rule == "allow" or (rule == "loopback" and auth.is_loopback(address))

    def authenticate_name(self, name: str | None, client: Client) -> Identity | None:
        """Return who it is by a name that needs no password: that in a verified certificate
        (SEC-6), or the one that anonymous clients have (R-CON-5).
        """
        user = None if name is None else self._view.user(name)
        if user is None:
            self.records.refuse(client, name or "?", login_records.CREDENTIALS)
            return None
        return self._at(_identity(user), client)


def _identity(user: User) -> Identity:
    return Identity(user.name, tuple(user.tags))


def _now_ms() -> int:
    return int(time.time() * 1000)
