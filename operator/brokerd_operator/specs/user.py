"""The User kind. PURE; the password comes in from a Secret and goes out write-only (SEC-20)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from brokerd_operator.specs.model import (
    NO_INPUTS,
    Dependency,
    Desired,
    DesiredObject,
    Identity,
    Inputs,
    Invalid,
    JsonObject,
    Limits,
    Meta,
    Reference,
    SecretRef,
    TopologySpec,
    Waiting,
    name_problem,
    parse_as,
)

Tag = Literal["administrator", "monitoring", "management", "policymaker"]


#: What a tag begins with that names a ServiceAccount (docs/concepts/tokens.md).
ACCOUNT_TAG = "serviceaccount:"


class UserLimits(Limits):
    """Bounds for one user."""

    max_channels: int | None = None


class UserSpec(TopologySpec):
    """A user of the whole broker; it has no virtual host (design/operator.md §4.1)."""

    KIND: ClassVar[str] = "User"
    BROKER_KIND: ClassVar[str] = "user"

    tags: tuple[Tag, ...] = ()
    credentials_secret_ref: SecretRef | None = None
    limits: UserLimits = UserLimits()
    #: Of its namespace only: who cannot speak for another one must not name those of it.
    service_accounts: tuple[str, ...] = ()

    @property
    def has_generated_secret(self) -> bool:
        """The operator makes the Secret itself when none is named."""
        return self.credentials_secret_ref is None

    def secret_name(self, meta: Meta) -> str:
        if self.credentials_secret_ref is not None:
            return self.credentials_secret_ref.name
        return f"{meta.name}-credentials"

    def subject(self, meta: Meta, inputs: Inputs = NO_INPUTS) -> str | None:
        return self.resolved_name(meta)

    def problem(self, meta: Meta) -> Invalid | None:
        return name_problem(("name", self.resolved_name(meta)))

    def references(self, meta: Meta) -> tuple[Reference, ...]:
        return (Reference("Secret", meta.namespace, self.secret_name(meta)),)

    def dependencies(self, meta: Meta) -> tuple[Dependency, ...]:
        return ()

    def identities(self, meta: Meta, inputs: Inputs = NO_INPUTS) -> tuple[Identity, ...]:
        return (Identity("user", "", self.resolved_name(meta)),)

    def desired(self, meta: Meta, inputs: Inputs = NO_INPUTS) -> Desired:
        secret = self.secret_name(meta)
        data = inputs.secrets.get(f"{meta.namespace}/{secret}")
        if data is None:
            return Waiting("WaitingForSecret", f"Secret {secret} does not exist")
        name = self.resolved_name(meta)
        accounts = (f"{ACCOUNT_TAG}{meta.namespace}/{each}" for each in self.service_accounts)
        tags = sorted({*self.tags, *accounts})
        spec: JsonObject = {"tags": tags, "limits": self.limits.to_json()}
        try:
            texts = {key: data[key].decode() for key in _KEYS if key in data}
        except UnicodeDecodeError:
            return Invalid("InvalidSpec", f"Secret {secret} is not UTF-8")
        if texts.get("username", name) != name:
            return Invalid("InvalidSpec", f"Secret {secret} is for another user than {name}")
        if texts.get("password"):
            spec["password"] = texts["password"]
        elif texts.get("passwordHash"):
            spec["password_hash"] = texts["passwordHash"]
        else:
            return Waiting(
                "WaitingForSecret", f"Secret {secret} has neither password nor passwordHash"
            )
        return (DesiredObject("user", "", name, spec, ("password", "password_hash")),)


_KEYS = ("username", "password", "passwordHash")


def parse(body: Mapping[str, Any]) -> UserSpec | Invalid:
    return parse_as(UserSpec, body)
