"""Rights that the chart grants, and requests that an API server has seen: for the test that the two
are the same. The requests come out of the API server's own audit log."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from tests.operator.charts import of_kind

#: Rules of the cluster hold in all namespaces, and for what lies in none.
EVERYWHERE = ""
FORBIDDEN = 403
CREATED = 201


class Grant(NamedTuple):
    """One verb on one resource (or subresource, after a slash). Without a name: on all of them."""

    namespace: str
    group: str
    resource: str
    verb: str
    name: str = ""

    def covers(self, request: Request) -> bool:
        return (
            self[1:4] == (request.group, request.resource, request.verb)
            and self.namespace in (EVERYWHERE, request.namespace)
            and self.name in ("", request.name)
        )


class Request(NamedTuple):
    """What was asked for; `refusal` is empty where it was allowed."""

    namespace: str
    group: str
    resource: str
    verb: str
    name: str
    refusal: str = ""


def granted(items: list[dict[str, Any]]) -> list[Grant]:
    """What bound roles give, each right as often as it is given."""
    rules = {
        (role["kind"], role["metadata"].get("namespace", ""), role["metadata"]["name"]): role
        for role in items
        if role["kind"] in ("Role", "ClusterRole")
    }
    found = []
    for kind in ("RoleBinding", "ClusterRoleBinding"):
        for binding in of_kind(items, kind):
            namespace = binding["metadata"].get("namespace", "")
            ref = binding["roleRef"]
            lies_in = namespace if ref["kind"] == "Role" else ""
            found += of_rules(rules[ref["kind"], lies_in, ref["name"]]["rules"], namespace)
    return found


def of_rules(rules: Iterable[dict[str, Any]], namespace: str) -> list[Grant]:
    return [
        Grant(namespace, group, resource, verb, name)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames") or ("",)
    ]


class Audit:
    """The audit log of an API server, as far as it was read."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._offset = 0
        self._requests: dict[str, set[Request]] = {}

    def of(self, user: str) -> set[Request]:
        """All requests of a user so far."""
        if self._file.exists():
            with self._file.open("rb") as log:
                log.seek(self._offset)
                # A line that is being written is left for the next time.
                whole = log.read().rpartition(b"\n")
                self._offset += len(whole[0]) + len(whole[1])
            for line in whole[0].splitlines():
                self._take(json.loads(line))
        return self._requests.setdefault(user, set())

    def _take(self, event: dict[str, Any]) -> None:
        found = event.get("objectRef")
        status = event.get("responseStatus") or {}
        code = status.get("code", 0)
        requests = self._requests.setdefault(event["user"]["username"], set())
        if found is None or "resource" not in found:
            # Which groups and versions there are: everybody may know.
            assert code != FORBIDDEN, event["requestURI"]
            return
        resource = "/".join(filter(None, (found["resource"], found.get("subresource"))))
        namespace = found.get("namespace", "")
        refusal = ""
        if code == FORBIDDEN:
            refusal = status.get("message") or "forbidden"
        verbs = [event["verb"]]
        if event["verb"] == "patch" and code == CREATED:
            # Server-side apply of what was not there: the API server asks for both rights.
            verbs.append("create")
        for verb in verbs:
            name = found.get("name", "")
            requests.add(
                Request(namespace, found.get("apiGroup", ""), resource, verb, name, refusal)
            )


def unneeded(grants: list[Grant], requests: Iterable[Request]) -> list[Grant]:
    """Grants without which every request would have been allowed all the same."""
    needed = set()
    for request in requests:
        covering = [grant for grant in grants if grant.covers(request)]
        if len(covering) == 1:
            needed.add(covering[0])
    return sorted(set(grants) - needed)
