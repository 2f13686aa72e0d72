"""`python -m brokerd_operator selftest`: is the installation whole? What `helm test` runs.

Asks the API server, as the operator's own account, whether it answers, serves all our kinds, and
grants every right that the chart says the operator needs (SelfSubjectAccessReview); then the
operator itself, whether it is ready. Changes nothing. For the command line only.
"""

from __future__ import annotations

import asyncio
import json
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple

from brokerd_operator.sources.api import GROUP_PATH, Api, ApiError
from brokerd_operator.specs import registry

REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
#: Reviews at a time; the client has 8 threads.
REVIEWS_AT_ONCE = 8
#: Between two questions: a right is granted a moment after its Role was made.
PAUSE_S = 1.0
REQUEST_TIMEOUT_S = 5.0
#: Problems that are printed of one kind; a missing Role is one cause with hundreds.
SHOWN_MAX = 20


class Right(NamedTuple):
    """One verb on one resource. Without a namespace: in all of them; without a name: on any."""

    verb: str
    group: str
    resource: str
    namespace: str
    name: str = ""

    def shown(self) -> str:
        group = f".{self.group}" if self.group else ""
        where = f"namespace {self.namespace}" if self.namespace else "all namespaces"
        which = f" {self.name}" if self.name else ""
        return f"{self.verb} {self.resource}{group}{which} in {where}"

    def review(self) -> dict[str, Any]:
        resource, _, subresource = self.resource.partition("/")
        attributes = {
            "verb": self.verb,
            "group": self.group,
            "resource": resource,
            "subresource": subresource,
            "namespace": self.namespace,
            "name": self.name,
        }
        return {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }


def rights(text: str) -> list[Right]:
    """The rights in what the chart renders: a list of {namespace, rules}. Raises ValueError."""
    try:
        return sorted({right for role in json.loads(text) for right in _of_role(role)})
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"not a list of namespace and rules: {error!r}") from error


def _of_role(role: dict[str, Any]) -> Iterator[Right]:
    for rule in role["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for verb in rule["verbs"]:
                    for name in rule.get("resourceNames") or ("",):
                        yield Right(verb, group, resource, role["namespace"], name)


async def problems(
    api: Api, needed: list[Right], ready_url: str, patience_s: float
) -> AsyncIterator[str]:
    """What is missing, in sentences. Ends at once where nothing further can be asked."""
    try:
        version = await api.request("GET", "/version")
    except ApiError as error:
        yield f"the API server cannot be reached: {error}"
        return
    print(f"API server: {version.get('gitVersion')}")
    missing = sorted(set(registry.PLURALS.values()) - await _served(api))
    if missing:
        yield (
            "custom resource definitions are not installed (crds.create of the chart): "
            + ", ".join(f"{name}.brokerd.io" for name in missing)
        )
    print(f"kinds: {len(registry.PLURALS) - len(missing)} of {len(registry.PLURALS)} served")
    denied = await _denied(api, needed, patience_s)
    for right in denied[:SHOWN_MAX]:
        yield f"not allowed: {right.shown()}"
    if len(denied) > SHOWN_MAX:
        yield f"not allowed: {len(denied) - SHOWN_MAX} more"
    print(f"rights: {len(needed) - len(denied)} of {len(needed)} granted")
    if not ready_url:
        return
    answer = await _operator_says(ready_url, patience_s)
    if answer:
        yield f"the operator is not ready: {answer}"
    else:
        print("operator: ready")


async def _served(api: Api) -> set[str]:
    found = await api.get(GROUP_PATH)
    return {item["name"] for item in (found or {}).get("resources", ())}


async def _denied(api: Api, needed: list[Right], patience_s: float) -> list[Right]:
    """Those that are still denied after a while."""
    deadline = time.monotonic() + patience_s
    gate = asyncio.Semaphore(REVIEWS_AT_ONCE)

    async def is_denied(right: Right) -> bool:
        async with gate:
            answer = await api.request("POST", REVIEWS, right.review())
        return not (answer.get("status") or {}).get("allowed", False)

    left = needed
    while True:
        answers = await asyncio.gather(*map(is_denied, left))
        left = [right for right, denied in zip(left, answers, strict=True) if denied]
        if not left or time.monotonic() > deadline:
            return left
        await asyncio.sleep(PAUSE_S)


async def _operator_says(url: str, patience_s: float) -> str:
    """Why the operator is still not ready after a while; empty if it is."""
    deadline = time.monotonic() + patience_s
    while True:
        answer = await asyncio.to_thread(_ask, url)
        if not answer or time.monotonic() > deadline:
            return answer
        await asyncio.sleep(PAUSE_S)


def _ask(url: str) -> str:
    try:
        # A proxy of the environment is for what is outside the cluster.
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(url, timeout=REQUEST_TIMEOUT_S):
            return ""
    except urllib.error.HTTPError as error:
        return f"{url}: {error.read().decode(errors='replace').strip()}"
    except OSError as error:
        return f"{url}: {getattr(error, 'reason', error)}"


def run(needed: list[Right], ready_url: str, patience_s: float) -> int:
    """Print what is found; the exit status."""
    return asyncio.run(_run(needed, ready_url, patience_s))


async def _run(needed: list[Right], ready_url: str, patience_s: float) -> int:
    api = Api()
    found = 0
    try:
        async for problem in problems(api, needed, ready_url, patience_s):
            found += 1
            print(f"FAILED: {problem}")
    except ApiError as error:
        found += 1
        print(f"FAILED: the API server refuses to say: {error}")
    finally:
        api.close()
    print("selftest failed" if found else "selftest passed")
    return 1 if found else 0
