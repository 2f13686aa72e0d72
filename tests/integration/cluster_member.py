"""One toy member as a process of its own, for tests that kill it.

Reads JSON lines on standard input, answers each with one on standard output.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import psutil
import uvloop

from brokerd.cluster.errors import ClusterError
from brokerd.raft.messages import NodeId
from tests.integration.cluster_toy import Member, toy_config, until

UID = 77


async def answer(member: Member, order: dict[str, Any]) -> dict[str, Any]:
    """Do what an order says."""
    status = member.host.status_of(UID)
    match order["do"]:
        case "put":
            command = f"{order['key']}={order['value']}".encode()
            try:
                return {"reply": (await member.client.request(UID, command, 60)).decode()}
            except ClusterError as error:
                return {"error": str(error)}
        case "fill":
            value = b"v" * order["size"]
            for number in range(order["count"]):
                await member.client.request(UID, b"fill%d=" % (number % 4) + value, 60)
            return {"rss": psutil.Process().memory_info().rss}
        case "status":
            machine = member.machines[UID]
            return {
                "leader": status.leader,
                "is_leader": status.is_leader,
                "values": machine.values,
                "count": machine.count,
                "alive": sorted(member.host.alive()),
            }
    raise ValueError(order)


async def serve(name: str, directory: str, incarnation: int, peers: dict[str, str]) -> None:
    """Run until standard input ends."""
    nodes = {NodeId(node): address for node, address in peers.items()}
    member = Member(name, Path(directory), toy_config(secret="shown"), incarnation)
    await member.host.start(nodes, peers[name])
    member.open_group(UID, list(peers))
    await until(lambda: member.host.status_of(UID).leader is not None)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    print(json.dumps({"port": member.host.port}), flush=True)
    while line := await reader.readline():
        print(json.dumps(await answer(member, json.loads(line))), flush=True)
    await member.close()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4])))
