"""`python -m brokerd_operator uninstall-hook`: frees what no operator freed before its end.

The bindings of watched namespaces carry the operator's finalizer (`rights.py`), and the operator
goes in the same moment as they do, or did not run at all. Two hooks of the chart run this with an
account of their own: one while the release is deleted, for a Helm that waits for the bindings' end,
and one after all else is deleted. For the command line only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from brokerd_operator.sources import rights
from brokerd_operator.sources.api import Api, ApiError
from brokerd_operator.sources.rights import Rights

#: A right is granted a moment after its role was made; then the Job tries again.
TRIES = 10
PAUSE_S = 1.0
#: Looks of `until_stopped`, some hours: Helm ends it when the deletion is over, which takes as long
#: as its --timeout.
LOOKS_MAX = 10_000


def run(binding: str, namespaces: tuple[str, ...], cluster_role: str) -> int:
    """Exit status: 0 when nothing that is being deleted waits for an operator any more."""
    return asyncio.run(_run(binding, namespaces, cluster_role))


def until_stopped(binding: str, namespaces: tuple[str, ...]) -> int:
    """Let go of each binding as soon as it is being deleted, until a signal ends this."""
    return asyncio.run(_until_stopped(binding, namespaces))


async def _until_stopped(binding: str, namespaces: tuple[str, ...]) -> int:
    api = Api()
    try:
        held = Rights(api, binding, namespaces)
        for _ in range(LOOKS_MAX):
            for name in namespaces:
                try:
                    await _release_ending(held, name)
                except ApiError as error:
                    print(f"{name}: {error}", flush=True)
            await asyncio.sleep(PAUSE_S)
        return 0
    finally:
        api.close()


async def _release_ending(held: Rights, namespace: str) -> None:
    binding = await held.read(namespace)
    if binding is not None and rights.is_held(binding) and rights.is_ending(binding):
        await held.release(namespace)
        print(f"{namespace}: let go", flush=True)


async def _run(binding: str, namespaces: tuple[str, ...], cluster_role: str) -> int:
    api = Api()
    try:
        held = Rights(api, binding, namespaces)
        are_done = [await _try(name, partial(_release, held, name)) for name in namespaces]
        if cluster_role and all(are_done):
            path = f"/apis/{rights.RBAC}/clusterroles/{cluster_role}"
            are_done.append(await _try(cluster_role, partial(api.delete, path)))
        return 0 if all(are_done) else 1
    finally:
        api.close()


async def _release(held: Rights, namespace: str) -> None:
    binding = await held.read(namespace)
    if binding is None or not rights.is_held(binding):
        print(f"{namespace}: nothing to let go of")
    elif not rights.is_ending(binding):
        # Another release's of the same name, made since.
        print(f"{namespace}: its binding is not being deleted, and stays")
    else:
        await held.release(namespace)
        print(f"{namespace}: let go")


async def _try(what: str, work: Callable[[], Awaitable[None]]) -> bool:
    """Whether it was done in one of some tries."""
    for attempt in range(TRIES):
        if attempt:
            await asyncio.sleep(PAUSE_S)
        try:
            await work()
        except ApiError as error:
            print(f"{what}: {error}")
        else:
            return True
    return False
