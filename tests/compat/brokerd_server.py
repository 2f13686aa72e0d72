"""brokerd as the server that is compared: one member, profile rabbitmq-3.10, the Admin service.

For tests/compat only.
"""

from __future__ import annotations

import json
from typing import Any

from tests.integration.federation_rig import Admin
from tests.integration.members import Member

PROFILE = "rabbitmq-3.10"
ENVIRONMENT = {
    "BROKERD_COMPAT_PROFILE": PROFILE,
    # Hundreds of logins: the cost of scrypt is measured elsewhere.
    "BROKERD_AUTH_SCRYPT_LOG2_N": "10",
}


class BrokerdAdmin:
    """The Admin of tests/compat/servers.py by the gRPC service, as guest."""

    def __init__(self, member: Member) -> None:
        self._grpc = Admin(member)

    def close(self) -> None:
        """End the client's channel."""
        self._grpc.close()

    def add_vhost(self, name: str, default_queue_type: str = "") -> None:
        """Make a vhost in which guest may do everything."""
        self._grpc.put("vhost", name, {"default_queue_type": default_queue_type}, "")
        self.set_permissions(name, "guest")

    def delete_vhost(self, name: str) -> None:
        """Remove a vhost with all that is in it."""
        self._grpc.delete("vhost", name, "")

    def add_user(self, name: str, password: str, *tags: str) -> None:
        """Make a user without any permission."""
        self._grpc.put("user", name, {"password": password, "tags": sorted(tags)}, "")

    def delete_user(self, name: str) -> None:
        """Remove a user."""
        self._grpc.delete("user", name, "")

    def set_permissions(
        self, vhost: str, user: str, configure: str = ".*", write: str = ".*", read: str = ".*"
    ) -> None:
        """Say what a user may do in a vhost."""
        spec = {"configure": configure, "write": write, "read": read}
        self._grpc.put("permission", user, spec, vhost)

    def clear_permissions(self, vhost: str, user: str) -> None:
        """Take a user's permissions in a vhost away."""
        self._grpc.delete("permission", user, vhost)

    def set_topic_permissions(
        self, vhost: str, user: str, exchange: str, write: str = ".*", read: str = ".*"
    ) -> None:
        """Limit the routing keys of a user with an exchange."""
        spec = {"write": write, "read": read}
        self._grpc.put("topic_permission", f"{user}|{exchange}", spec, vhost)

    def set_policy(
        self,
        vhost: str,
        name: str,
        pattern: str,
        definition: dict[str, Any],
        apply_to: str = "all",
        priority: int = 0,
        operator: bool = False,
    ) -> None:
        """Define a policy or operator policy."""
        spec = {
            "pattern": pattern,
            "definition": definition,
            "apply-to": apply_to,
            "priority": priority,
        }
        self._grpc.put(_kind(operator), name, spec, vhost)

    def clear_policy(self, vhost: str, name: str, operator: bool = False) -> None:
        """Remove a policy or operator policy."""
        self._grpc.delete(_kind(operator), name, vhost)

    def set_vhost_limit(self, vhost: str, name: str, value: int) -> None:
        """Set max-connections or max-queues of a vhost."""
        spec = self._grpc.objects("vhost")[vhost]
        self._grpc.put("vhost", vhost, spec | {"limits": spec["limits"] | {name: value}}, "")

    def set_user_limit(self, user: str, name: str, value: int) -> None:
        """Set max-connections or max-channels of a user."""
        spec = self._grpc.objects("user")[user]
        self._grpc.put("user", user, spec | {"limits": spec["limits"] | {name: value}}, "")

    def queues(self, vhost: str) -> dict[str, dict[str, Any]]:
        """Return the queues of a vhost by name."""
        return {row["name"]: row for row in self._rows("queues", vhost)}

    def exchanges(self, vhost: str) -> dict[str, dict[str, Any]]:
        """Return the exchanges of a vhost by name."""
        return {row["name"]: row for row in self._rows("exchanges", vhost)}

    def bindings(self, vhost: str) -> list[dict[str, Any]]:
        """Return the bindings of a vhost, the default exchange's included."""
        return [_as_rabbitmq(row) for row in self._rows("bindings", vhost)]

    def _rows(self, kind: str, vhost: str) -> list[dict[str, Any]]:
        return [row for row in self._grpc.rows(kind) if row["vhost"] == vhost]


def _as_rabbitmq(binding: dict[str, Any]) -> dict[str, Any]:
    """Name the columns as RabbitMQ's HTTP API does."""
    return {
        "source": binding["source_name"],
        "destination": binding["destination_name"],
        "destination_type": binding["destination_kind"],
        "routing_key": binding["routing_key"],
        "arguments": json.loads(json.dumps(binding["arguments"])),
        "vhost": binding["vhost"],
    }


def _kind(operator: bool) -> str:
    return "operator_policy" if operator else "policy"
