"""RabbitMQ 3.10.8, Debian's own, as the server whose answers are the expectation.

A node of tests/rabbitmq_node.py, administered over the HTTP API of its management plugin. For
tests/compat only.
"""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import quote

VERSION = "3.10.8"
REQUEST_SECONDS = 60.0
#: The Authorization header of guest.
GUEST = "Basic Z3Vlc3Q6Z3Vlc3Q="


class RabbitAdmin:
    """The Admin of tests/compat/servers.py by the HTTP API, as guest."""

    def __init__(self, port: int) -> None:
        self._http = http.client.HTTPConnection("127.0.0.1", port, timeout=REQUEST_SECONDS)

    def close(self) -> None:
        """Drop the connection."""
        self._http.close()

    def _call(self, verb: str, *path: str, body: Any = None) -> Any:
        url = "/api/" + "/".join(quote(part, safe="") for part in path)
        headers = {"Authorization": GUEST, "Content-Type": "application/json"}
        text = None if body is None else json.dumps(body)
        try:
            self._http.request(verb, url, text, headers)
            answer = self._http.getresponse()
        except (http.client.RemoteDisconnected, ConnectionError):
            # An idle connection was closed by the server; each request here can be repeated.
            self._http.close()
            self._http.request(verb, url, text, headers)
            answer = self._http.getresponse()
        data = answer.read()
        assert answer.status < 300, f"{verb} {url}: {answer.status} {data[:500]!r}"
        return json.loads(data) if data else None

    def add_vhost(self, name: str, default_queue_type: str = "") -> None:
        """Make a vhost in which guest may do everything."""
        body = {"default_queue_type": default_queue_type} if default_queue_type else {}
        self._call("PUT", "vhosts", name, body=body)
        self.set_permissions(name, "guest")

    def delete_vhost(self, name: str) -> None:
        """Remove a vhost with all that is in it."""
        self._call("DELETE", "vhosts", name)

    def add_user(self, name: str, password: str, *tags: str) -> None:
        """Make a user without any permission."""
        self._call("PUT", "users", name, body={"password": password, "tags": ",".join(tags)})

    def delete_user(self, name: str) -> None:
        """Remove a user."""
        self._call("DELETE", "users", name)

    def set_permissions(
        self, vhost: str, user: str, configure: str = ".*", write: str = ".*", read: str = ".*"
    ) -> None:
        """Say what a user may do in a vhost."""
        body = {"configure": configure, "write": write, "read": read}
        self._call("PUT", "permissions", vhost, user, body=body)

    def clear_permissions(self, vhost: str, user: str) -> None:
        """Take a user's permissions in a vhost away."""
        self._call("DELETE", "permissions", vhost, user)

    def set_topic_permissions(
        self, vhost: str, user: str, exchange: str, write: str = ".*", read: str = ".*"
    ) -> None:
        """Limit the routing keys of a user with an exchange."""
        body = {"exchange": exchange, "write": write, "read": read}
        self._call("PUT", "topic-permissions", vhost, user, body=body)

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
        body = {
            "pattern": pattern,
            "definition": definition,
            "apply-to": apply_to,
            "priority": priority,
        }
        self._call("PUT", _policies(operator), vhost, name, body=body)

    def clear_policy(self, vhost: str, name: str, operator: bool = False) -> None:
        """Remove a policy or operator policy."""
        self._call("DELETE", _policies(operator), vhost, name)

    def set_vhost_limit(self, vhost: str, name: str, value: int) -> None:
        """Set max-connections or max-queues of a vhost."""
        self._call("PUT", "vhost-limits", vhost, name, body={"value": value})

    def set_user_limit(self, user: str, name: str, value: int) -> None:
        """Set max-connections or max-channels of a user."""
        self._call("PUT", "user-limits", user, name, body={"value": value})

    def queues(self, vhost: str) -> dict[str, dict[str, Any]]:
        """Return the queues of a vhost by name."""
        return {row["name"]: row for row in self._call("GET", "queues", vhost)}

    def exchanges(self, vhost: str) -> dict[str, dict[str, Any]]:
        """Return the exchanges of a vhost by name."""
        return {row["name"]: row for row in self._call("GET", "exchanges", vhost)}

    def bindings(self, vhost: str) -> list[dict[str, Any]]:
        """Return the bindings of a vhost, the default exchange's included."""
        rows: list[dict[str, Any]] = self._call("GET", "bindings", vhost)
        return rows


def _policies(operator: bool) -> str:
    return "operator-policies" if operator else "policies"
