"""What a starting node asks the ones it knows of: is there a cluster, and am I of it?

One question on a stream of its own (peer.proto: Enquiry), asked before the node takes part in
anything.  Only the question: formation.py decides what the answers mean, server/members/joining.py
asks.
"""

from __future__ import annotations

import asyncio

from brokerd.cluster.config import HostConfig
from brokerd.cluster.errors import ClusterError
from brokerd.cluster.peer import frames, peer_call, security
from brokerd.http2.errors import Http2Error
from brokerd.raft.messages import NodeId
from brokerd.rpc.v1 import peer_pb2

#: The answer may need a majority of the catalog (server/members/joining.py: ANSWER_S).
TIMEOUT_S = 10.0


class NoAnswer(Exception):
    """The node could not be asked; the text says why."""


async def ask(
    config: HostConfig,
    node: NodeId,
    incarnation: int,
    peer: NodeId,
    address: str,
    enquiry: peer_pb2.Enquiry,
    timeout_s: float = TIMEOUT_S,
) -> peer_pb2.Description:
    """Ask one node; NoAnswer if that fails, for whatever reason."""
    hello = frames.encode_hello(node, incarnation, config.cluster_id, enquiry=enquiry)
    try:
        tls = None if config.tls is None else security.TlsContexts(config.tls)
        async with asyncio.timeout(timeout_s):
            call = await peer_call.dial(config, tls, peer, address, hello)
            try:
                answer = await call.introduce(peer)
            finally:
                call.give_up(None)
    except TimeoutError as late:
        raise NoAnswer("no answer in time") from late
    except (ClusterError, Http2Error, OSError, UnicodeError) as error:
        raise NoAnswer(str(error) or type(error).__name__) from error
    if not answer.HasField("description"):
        raise NoAnswer("it does not answer enquiries: an older version?")
    return answer.description
