"""What the cluster drivers ask of a broker while its members come and go.

Says in words how it went; what can be tried again later is no error. One client per question, since
there are few. For `sources/` and `local/`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from brokerd_operator.broker import errors
from brokerd_operator.broker.client import AdminClient, Target
from brokerd_operator.reconcile.scaling import Step, StepKind

LIST_TIMEOUT_S = 10.0


@asynccontextmanager
async def _asking(target: Target) -> AsyncIterator[AdminClient]:
    client = AdminClient(target)
    try:
        yield client
    finally:
        await client.close()


async def listed(target: Target | None) -> frozenset[str] | None:
    """Names of the members that stay, as the broker has them; None: it cannot be asked now."""
    if target is None:
        return None
    async with _asking(target) as client:
        try:
            async with asyncio.timeout(LIST_TIMEOUT_S):
                members = await client.members()
        except (errors.BrokerError, TimeoutError):
            return None
    # A broker that is being founded lists no members yet.
    return frozenset(member.name for member in members) or None


async def set_fenced(target: Target | None, name: str, *, is_fenced: bool) -> str:
    """Put a member into maintenance or end that (`target` is the member alone); "" or why not."""
    if target is None:
        return f"{name} cannot be asked yet"
    async with _asking(target) as client:
        try:
            await (client.drain(name) if is_fenced else client.revive(name))
        except errors.BrokerError as error:
            return str(error)
    return ""


async def carry_out(target: Target, step: Step, peer_address: str) -> str:
    """Do a step that is the broker's (`target` without the member that leaves); "" or why not."""
    async with _asking(target) as client:
        try:
            if step.kind is StepKind.ADD:
                await client.add_member(step.member, peer_address)
            elif step.kind is StepKind.REMOVE:
                await client.remove_member(step.member)
            elif step.kind is StepKind.RESTART:
                reasons = await client.reasons_against_stopping(step.member)
                return "; ".join(reasons[:3])
        except errors.BrokerError as error:
            return str(error)
    return ""
