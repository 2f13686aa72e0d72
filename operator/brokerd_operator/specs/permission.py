"""The Permission kind. PURE."""

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
    Part,
    Reference,
    TopologySpec,
    Waiting,
    name_problem,
    parse_as,
    pattern_problem,
    vhost_dependency,
)


class UserRef(Part):
    """A User resource of the same namespace."""

    name: str


class OfUser(TopologySpec):
    """Base of the rights of one user, who is named, or whose User resource is."""

    user: str | None = None
    user_ref: UserRef | None = None

    def resolved_name(self, meta: Meta) -> str:
        """The user, as far as it is known without looking at the User resource."""
        return self.user or (self.user_ref.name if self.user_ref else "")

    def subject(self, meta: Meta, inputs: Inputs = NO_INPUTS) -> str | None:
        return self.user_name(meta, inputs) or ""

    def references(self, meta: Meta) -> tuple[Reference, ...]:
        if self.user_ref is None:
            return ()
        return (Reference("User", meta.namespace, self.user_ref.name),)

    def dependencies(self, meta: Meta) -> tuple[Dependency, ...]:
        found = [vhost_dependency(self.vhost)]
        if self.user is not None:
            found.append(Dependency(Identity("user", "", self.user), "WaitingForUser"))
        return tuple(found)

    def user_name(self, meta: Meta, inputs: Inputs) -> str | None:
        if self.user_ref is None:
            return self.user
        return inputs.users.get(f"{meta.namespace}/{self.user_ref.name}")

    def waiting(self) -> Waiting:
        """While the User resource is not there."""
        wanted = self.user_ref.name if self.user_ref else ""
        return Waiting("WaitingForUser", f"User {wanted} does not exist")


class PermissionSpec(OfUser):
    """Rights of one user in one virtual host, which are its identity (design/operator.md §5.3)."""

    KIND: ClassVar[str] = "Permission"
    BROKER_KIND: ClassVar[str] = "permission"

    configure: str = ""
    write: str = ""
    read: str = ""

    def problem(self, meta: Meta) -> Invalid | None:
        return (
            name_problem(("vhost", self.vhost), ("user", self.user))
            or pattern_problem("configure", self.configure)
            or pattern_problem("write", self.write)
            or pattern_problem("read", self.read)
        )

    def identities(self, meta: Meta, inputs: Inputs = NO_INPUTS) -> tuple[Identity, ...]:
        name = self.user_name(meta, inputs)
        # Without its User the name is unknown; the owner token in the broker finds the object then.
        return () if name is None else (Identity("permission", self.vhost, name),)

    def desired(self, meta: Meta, inputs: Inputs = NO_INPUTS) -> Desired:
        name = self.user_name(meta, inputs)
        if name is None:
            return self.waiting()
        spec: JsonObject = {"configure": self.configure, "write": self.write, "read": self.read}
        return (DesiredObject("permission", self.vhost, name, spec),)


def parse(body: Mapping[str, Any]) -> PermissionSpec | Invalid:
    return parse_as(PermissionSpec, body)
