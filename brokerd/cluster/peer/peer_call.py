"""The dialling end of a peer stream: one connection, one call, our hello, its hello, our frames.

For transport.py, which keeps such calls to all peers, and join_request.py, which asks one question.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from google.protobuf.message import DecodeError

from brokerd.cluster.config import HostConfig
from brokerd.cluster.errors import PeerRefusedError
from brokerd.cluster.peer import grpc_messages, security
from brokerd.cluster.peer.discovery import Lookup, parse_address
from brokerd.cluster.peer.peer_connection import PeerConnection
from brokerd.http2 import one_stream
from brokerd.raft.messages import NodeId
from brokerd.rpc.v1 import peer_pb2


class PeerCall(PeerConnection):
    """A call of Peer/Exchange.  `answer` holds the other side's hello once it has come."""

    def __init__(
        self, config: HostConfig, address: str, hello: bytes, can_send_again: Callable[[], None]
    ) -> None:
        super().__init__(config.transport, is_client=True)
        self.reader.bytes_max = config.transport.answer_bytes_max
        self._config = config
        self._address = address
        self._hello = hello
        self._resume = can_send_again
        self._answer: asyncio.Future[bytes] = self.loop.create_future()

    async def introduce(self, node: NodeId) -> peer_pb2.Hello:
        """Return the other side's hello; PeerRefusedError unless it is `node` of this cluster,
        OSError if it hangs up."""
        await asyncio.wait((self._answer, self.lost), return_when=asyncio.FIRST_COMPLETED)
        if not self._answer.done():
            raise self.lost.result() or ConnectionResetError("it closed the connection")
        try:
            hello = peer_pb2.PeerFrame.FromString(self._answer.result()).hello
        except DecodeError as error:
            raise PeerRefusedError(f"its hello cannot be read: {error}") from error
        if hello.cluster_id != self._config.cluster_id:
            raise PeerRefusedError(f"it belongs to cluster {hello.cluster_id!r}")
        if hello.node != node:
            raise PeerRefusedError(f"it is {hello.node!r}")
        return hello

    # ---- PeerConnection -------------------------------------------------------------------------

    def opened(self) -> None:
        config = self._config
        scheme = "http" if config.tls is None else "https"
        metadata = security.secret_metadata(config.secret)
        self.http2.send_headers(grpc_messages.request_headers(scheme, self._address, metadata))
        self.send_message((self._hello,), len(self._hello))

    def message_received(self, message: bytes) -> None:
        # The answer stream carries one hello and then nothing (peer.proto).
        if not self._answer.done():
            self._answer.set_result(message)

    def headers_received(self, event: one_stream.HeadersReceived) -> None:
        text = grpc_messages.describe_end(event.headers)
        if text or event.ends_stream:
            self.give_up(PeerRefusedError(text or "it ended the stream"))

    def stream_ended(self, code: int | None) -> None:
        self.give_up(PeerRefusedError(f"it reset the stream ({code})"))

    def can_send_again(self) -> None:
        self._resume()


async def dial(
    config: HostConfig,
    tls: security.TlsContexts | None,
    node: NodeId,
    address: str,
    hello: bytes,
    can_send_again: Callable[[], None] = lambda: None,
    lookup: Lookup | None = None,
) -> PeerCall:
    """Connect a socket, with TLS if there is `tls`; OSError if no address answers.

    lookup: of this address, for a caller that dials it again and again.
    """
    host, port = parse_address(address)
    context = None if tls is None else tls.client()
    fault: OSError | None = None
    for place in await (lookup or Lookup(address)).addresses():
        call = PeerCall(config, address, hello, can_send_again)
        try:
            await asyncio.get_running_loop().create_connection(
                partial(_itself, call),
                place,
                port,
                ssl=context,
                # The certificate must carry the member's name, whatever its address (SEC-4).
                server_hostname=None if context is None else node,
            )
            return call
        except OSError as error:
            call.abandon()
            fault = error
        except BaseException:
            # Cancelled just when it stood: the loop closes the socket without a word to the
            # protocol.
            call.abandon()
            raise
    raise fault or ConnectionRefusedError(f"{host} has no address")


def _itself(call: PeerCall) -> PeerCall:
    return call
