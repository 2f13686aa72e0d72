"""The operator's own account in a BrokerCluster's broker: its password is what the Secret says.

The operator gets in by its certificate (ADR 21), so a Secret that was changed, lost and made anew,
or brought along for data that knows another password does not lock it out: the password in the
broker follows, and the one before stays right for a while. For cluster_pass.py.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from brokerd_operator import conditions
from brokerd_operator.broker.client import Result
from brokerd_operator.broker.errors import BrokerError
from brokerd_operator.engine.session import BrokerSession, State
from brokerd_operator.reconcile import reserved
from brokerd_operator.reconcile.actions import Precondition, Upsert
from brokerd_operator.specs import arguments
from brokerd_operator.specs.model import ClusterAddress, DesiredObject, Identity, JsonObject

log = logging.getLogger(__name__)

SYNCED = "Synced"
NOT_SYNCED = "NotSynced"
#: Of the Event when the broker's password was set.
CREDENTIALS_SET = "CredentialsSet"
#: What a broker says that can keep the old password for a while.
OVERLAP_FEATURE = "password-overlap"
_ADMINISTRATOR = "administrator"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one look at the account came to."""

    status: str
    reason: str
    message: str
    #: Text of an Event, emitted once: the broker's password was set.
    event: str = ""
    is_to_be_repeated: bool = False

    def condition(self, generation: int) -> conditions.Condition:
        return conditions.build(
            conditions.CREDENTIALS_SYNCED, self.status, self.reason, self.message, generation
        )


class AdminAccount:
    """Of one broker. State: the login that the broker held last as the Secret has it, and the hash
    of the user then; in memory only, so the first look after a start writes what may be there.
    """

    def __init__(self) -> None:
        self._digest = ""
        self._hash = ""

    async def sync(
        self, session: BrokerSession, secret: str, login: ClusterAddress | None, overlap_ms: int
    ) -> Verdict:
        """Set the broker's password if it may differ from the Secret's."""
        if session.state is not State.UP:
            reason = "WaitingForLogin" if session.is_denied else "WaitingForBroker"
            status = conditions.FALSE if session.is_denied else conditions.UNKNOWN
            return Verdict(status, reason, session.problem)
        if login is None or not login.username or not login.password:
            text = f"Secret {secret} has no username and password that can be read"
            return Verdict(conditions.FALSE, NOT_SYNCED, text)
        synced = Verdict(
            conditions.TRUE, SYNCED, f"the broker takes the user and password of Secret {secret}"
        )
        digest = arguments.digest([login.username, login.password], 64)
        user = session.topology.get(reserved.user(login.username))
        if user is not None and (self._digest, self._hash) == (digest, user.hash):
            return synced
        # What the Secret had already and somebody changed in the broker is not to be kept.
        is_rotation = self._digest != digest
        try:
            result = await self._set(session, login, overlap_ms if is_rotation else 0)
        except BrokerError as error:
            return Verdict(conditions.FALSE, NOT_SYNCED, str(error), is_to_be_repeated=True)
        if not result.is_done or result.current is None:
            text = f"the password of user {login.username} was not set: {result.message}"
            return Verdict(conditions.FALSE, NOT_SYNCED, text, is_to_be_repeated=True)
        self._digest, self._hash = digest, result.current.hash
        target = session.client.target if session.client is not None else None
        if target is not None and (target.username, target.password) != (
            login.username,
            login.password,
        ):
            # It would fall back on the login before, and reserve that one's account.
            await session.renew()
        if result.code == "UNCHANGED":
            return synced
        text = f"the broker's password of user {login.username} was set to that of Secret {secret}"
        log.info("credentials set broker=%s user=%s", session.reference.key, login.username)
        return Verdict(conditions.TRUE, SYNCED, synced.message, event=text)

    async def _set(self, session: BrokerSession, login: ClusterAddress, overlap_ms: int) -> Result:
        identity = reserved.user(login.username)
        present = session.topology.get(identity)
        spec: JsonObject = {} if present is None else dict(present.spec)
        spec["tags"] = sorted({_ADMINISTRATOR, *spec.get("tags", ())})
        spec["password"] = login.password
        can_overlap = session.info is not None and OVERLAP_FEATURE in session.info.features
        if overlap_ms and can_overlap:
            spec["password_overlap_ms"] = overlap_ms
        precondition = Precondition(is_absent=True)
        if present is not None:
            precondition = Precondition(hash=present.hash)
        hidden = ("password", "password_overlap_ms")
        item = DesiredObject(identity.kind, identity.vhost, identity.name, spec, hidden)
        actions = [Upsert(item, None, precondition)]
        if present is None and session.topology.has(Identity("vhost", "", reserved.DEFAULT_VHOST)):
            # As the cluster's first start made it.
            rights = {"configure": ".*", "write": ".*", "read": ".*"}
            permission = reserved.permission(login.username)
            everything = DesiredObject(permission.kind, permission.vhost, permission.name, rights)
            actions.append(Upsert(everything, None, Precondition(is_absent=True)))
        results = await session.apply(actions)
        return results[0]


def waiting(
    session: BrokerSession | None, secret: str, before: conditions.Condition | None
) -> tuple[str, str] | None:
    """Why a BrokerCluster whose members run is not ready all the same, as reason and message.

    Until an operator that has just started has asked, what was said before it holds.
    """
    if session is None or session.state is State.UP:
        return None
    if session.state is State.CONNECTING:
        is_said = before is not None and before.reason in ("WaitingForBroker", "WaitingForLogin")
        return (before.reason, before.message) if before is not None and is_said else None
    if not session.is_denied:
        return "WaitingForBroker", session.problem
    return (
        "WaitingForLogin",
        f"{session.problem}; neither the operator's certificate nor the password in Secret "
        f"{secret} is taken: put the password that the broker has into the Secret, or see 'The "
        "operator's login' in docs/operations.md",
    )
