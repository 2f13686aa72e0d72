"""What becomes of logins: a figure for each, and a line for each that is refused (metrics, log)."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from typing import Final

from brokerd.server.access.limited_log import LimitedLog

log = logging.getLogger(__name__)

#: Why a login is refused, as the metric and the log have it.  The client learns none of it, and
#: nobody whether it was the name or the password that was wrong (SEC-9).
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
}
LISTENERS: Final = ("amqp", "amqps", "grpc", "http", "https")


@dataclass(slots=True, frozen=True)
class Client:
    """Where a login comes from.  `connection` names its socket, for the log and for fairness."""

    listener: str
    address: str
    connection: str


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
