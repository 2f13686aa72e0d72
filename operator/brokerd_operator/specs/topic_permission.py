"""The TopicPermission kind: routing keys of one topic exchange (R-TP-1, R-TP-2). PURE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from brokerd_operator.specs.model import (
    NO_INPUTS,
    Dependency,
    Desired,
    DesiredObject,
    Identity,
    Inputs,
    Invalid,
    JsonObject,
    Meta,
    name_problem,
    parse_as,
    pattern_problem,
)
from brokerd_operator.specs.permission import OfUser

#: Between user and exchange in the object's name.
SEPARATOR = "|"


class TopicPermissionSpec(OfUser):
    """Rights of one user at one exchange; user, vhost and exchange are its identity
    (design/operator.md §5.11).
    """

    KIND: ClassVar[str] = "TopicPermission"
    BROKER_KIND: ClassVar[str] = "topic_permission"

    exchange: str
    write: str = ""
    read: str = ""

    def problem(self, meta: Meta) -> Invalid | None:
        return (
            name_problem(("vhost", self.vhost), ("user", self.user), ("exchange", self.exchange))
            or separator_problem(self.user)
            or pattern_problem("write", self.write)
            or pattern_problem("read", self.read)
        )

    def dependencies(self, meta: Meta) -> tuple[Dependency, ...]:
        exchange = Identity("exchange", self.vhost, self.exchange)
        # RabbitMQ takes it before the exchange exists.
        return (*super().dependencies(meta), Dependency(exchange, "", is_hard=False))

    def identities(self, meta: Meta, inputs: Inputs = NO_INPUTS) -> tuple[Identity, ...]:
        name = self.user_name(meta, inputs)
        if name is None or separator_problem(name) is not None:
            return ()
        return (Identity("topic_permission", self.vhost, f"{name}{SEPARATOR}{self.exchange}"),)

    def desired(self, meta: Meta, inputs: Inputs = NO_INPUTS) -> Desired:
        name = self.user_name(meta, inputs)
        if name is None:
            return self.waiting()
        problem = separator_problem(name)
        if problem is not None:
            return problem
        spec: JsonObject = {"write": self.write, "read": self.read}
        (identity,) = self.identities(meta, inputs)
        return (DesiredObject("topic_permission", self.vhost, identity.name, spec),)


def separator_problem(user: str | None) -> Invalid | None:
    """The broker would read the rest of such a name as the exchange, and give the rights to
    another user.
    """
    if user is None or SEPARATOR not in user:
        return None
    return Invalid("InvalidName", f"the user {user} holds a {SEPARATOR}, which ends it here")


def parse(body: Mapping[str, Any]) -> TopicPermissionSpec | Invalid:
    return parse_as(TopicPermissionSpec, body)
