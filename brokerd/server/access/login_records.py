"""What becomes of logins: a figure for each, and a line for each that is refused (metrics, log)."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from typing import Final

from brokerd.core.catalog.claims import Problem
from brokerd.server.access.limited_log import LimitedLog

log = logging.getLogger(__name__)

#: Why a login is refused, as the metric and the log have it.  The client learns none of it, and no
#: reason says whether the name or the password was wrong (SEC-9).
CREDENTIALS: Final = "credentials"
UNREADABLE: Final = "unreadable"
LOOPBACK: Final = "loopback"
NO_TLS: Final = "no_tls"
UNCHECKED: Final = "unchecked"
ABANDONED: Final = "abandoned"
EXPIRED: Final = "expired"
REASONS: Final = {
    CREDENTIALS: "wrong user or password",
    UNREADABLE: "no user and password that can be read",
    LOOPBACK: "this user only from the member's own machine (auth.loopback_users)",
    NO_TLS: "passwords are not taken without TLS (auth.passwords_without_tls)",
    UNCHECKED: "not checked, too many logins at once from this address or of this user",
    ABANDONED: "the client went before it was checked or answered",
    EXPIRED: "the certificate of its connection has expired",
    Problem.UNREADABLE: "the token cannot be read",
    Problem.ALGORITHM: "the token is not signed in a way that is taken (oauth2.algorithms)",
    Problem.ISSUER: "the token is of an issuer that is not known here",
    Problem.KEY: "the token is signed with a key that its issuer does not publish",
    Problem.ISSUER_AWAY: "the issuer of tokens cannot be asked for its keys, and none are known",
    Problem.SIGNATURE: "the signature of the token is wrong",
    Problem.EXPIRED: "the token has expired",
    Problem.NOT_YET: "the token is for later (nbf)",
    Problem.AUDIENCE: "the token is for somebody else (aud)",
    Problem.SCOPES: "the token has too many scopes",
    Problem.USER: "the token names nobody who is a user here",
}
LISTENERS: Final = ("amqp", "amqps", "grpc", "http", "https")


@dataclass(slots=True, frozen=True)
class Client:
    """Where a login comes from.  `connection` names its socket, for the log and for fairness."""

    listener: str
    address: str
    connection: str
    #: What was asked came by way of a proxy, or under a name that is not this machine's own: though
    #: the address may be of this machine, the person need not be at it.
    is_from_afar: bool = False


class LoginRecords:
    """The figures of one member."""

    def __init__(self) -> None:
        #: By listener; on gRPC and HTTP each call is a login.
        self.accepted: Counter[str] = Counter()
        #: By listener and reason.
        self.refused: Counter[tuple[str, str]] = Counter()
        self._lines = LimitedLog(log, "refused logins")

    def accept(self, client: Client) -> None:
        """Somebody is in."""
        self.accepted[client.listener] += 1

    def refuse(self, client: Client, user: str, reason: str) -> None:
        """Somebody is not."""
        self.refused[client.listener, reason] += 1
        # The name is a stranger's text: quoted, so that it cannot begin a line of its own.
        self._lines.write(
            logging.ERROR,
            f"refused login of user {user!r} from {client.connection} "
            f"({client.listener}): {REASONS[reason]}",
        )
