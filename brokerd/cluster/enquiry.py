"""What a starting node asks the ones it knows of: is there a cluster, and am I of it?

One question on a stream of its own (peer.proto: Enquiry), asked before the node takes part in
anything.  Only the question: formation.py decides what the answers mean, server/joining.py asks.
"""

from __future__ import annotations

import asyncio
import logging

import grpc

from brokerd.cluster import frames, security
from brokerd.cluster.config import HostConfig
from brokerd.raft.messages import NodeId
from brokerd.rpc.v1 import peer_pb2

logger = logging.getLogger(__name__)

METHOD = "/brokerd.v1.Peer/Exchange"
#: The answer may need a majority of the catalog (server/joining.py: ANSWER_S).
TIMEOUT_S = 10.0
#: A description is a list of members; more is not one.
ANSWER_BYTES_MAX = 1024 * 1024


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
    hello = peer_pb2.PeerFrame(
        hello=peer_pb2.Hello(
            cluster_id=config.cluster_id,
            node=node,
            incarnation=incarnation,
            protocol_version=frames.PROTOCOL_VERSION,
            enquiry=enquiry,
        )
    )
    try:
        async with asyncio.timeout(timeout_s), _channel(config, peer, address) as channel:
            exchange = channel.stream_stream(
                METHOD,
                request_serializer=peer_pb2.PeerFrame.SerializeToString,
                response_deserializer=peer_pb2.PeerFrame.FromString,
            )
            call = exchange(metadata=security.secret_metadata(config.secret))
            await call.write(hello)
            answer = await call.read()
            if not isinstance(answer, peer_pb2.PeerFrame):
                raise NoAnswer(f"{(await call.code()).name}: {await call.details()}")
            call.cancel()
    except TimeoutError as error:
        raise NoAnswer("no answer in time") from error
    except grpc.aio.AioRpcError as error:
        raise NoAnswer(f"{error.code().name}: {error.details()}") from error
    except (OSError, asyncio.InvalidStateError) as error:
        raise NoAnswer(str(error) or type(error).__name__) from error
    if answer.hello.cluster_id != config.cluster_id:
        raise NoAnswer(f"it belongs to cluster {answer.hello.cluster_id!r}")
    if answer.hello.node != peer:
        raise NoAnswer(f"it is {answer.hello.node!r}")
    if not answer.hello.HasField("description"):
        raise NoAnswer("it does not answer enquiries: an older version?")
    return answer.hello.description


def _channel(config: HostConfig, peer: NodeId, address: str) -> grpc.aio.Channel:
    options: list[tuple[str, int | str]] = [
        ("grpc.max_receive_message_length", ANSWER_BYTES_MAX),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_retries", 0),
        ("grpc.enable_http_proxy", 0),
    ]
    if config.tls is None:
        return grpc.aio.insecure_channel(address, options=options)
    # The certificate must carry the member's name, whatever address it was reached at (SEC-4).
    options.append(("grpc.ssl_target_name_override", peer))
    return grpc.aio.secure_channel(
        address, security.client_credentials(config.tls), options=options
    )
