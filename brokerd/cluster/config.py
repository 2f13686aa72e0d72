"""Bounds and timings of the cluster room; every limit has its reason here.

Built by the composition root from BrokerConfig; nothing here reads files or environment.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from brokerd.raft.config import RaftConfig

KIB = 1024
MIB = 1024 * KIB


@dataclass(slots=True)
class TlsFiles:
    """Paths of PEM files for mTLS between members (SEC-3), looked at again for each connection
    (SEC-5).

    The certificate's DNS names must contain the member's bare name: the dialling member checks it.
    """

    certificate: str
    key: str
    ca: str


@dataclass(slots=True)
class TransportConfig:
    """Limits of the streams between members."""

    #: One frame carries parts up to about this much (design/replication.md §2); a larger part goes
    #: alone.
    frame_bytes: int = 256 * KIB
    #: Data of one snapshot chunk.
    chunk_bytes: int = 512 * KIB
    #: Largest frame that is accepted (SEC-47): raft's largest entry and 3 MiB around it.
    receive_bytes_max: int = 132 * MIB
    #: Bytes waiting for one peer.  Beyond it raft messages are dropped and reported as lost, and
    #: requests are refused (design/hot-path.md rule 7).
    outbox_bytes: int = 64 * MIB
    #: Deliveries and replies are never dropped singly; beyond this the stream is broken instead, so
    #: that both sides know what is lost.
    outbox_bytes_max: int = 512 * MIB
    #: A snapshot that is being received, with its live entries.
    snapshot_bytes_max: int = 2048 * MIB
    #: Snapshots waiting for one peer; they hold memory, and the raft room sends them again.
    snapshots_queued_max: int = 4
    #: HTTP/2 window of a member that was admitted: what it may have on the way.  Several frames, so
    #: that a link with some milliseconds of latency is used; a stopped process holds no more of it.
    window_bytes: int = 4 * MIB
    #: Bytes that a socket has not taken; over it frames stay in the outbox.
    write_buffer_bytes: int = 1 * MIB
    #: The first message of a stream, before anybody is trusted.
    hello_bytes_max: int = 16 * KIB
    #: What a member that was dialled answers: a hello, perhaps with a description of the cluster.
    answer_bytes_max: int = 1 * MIB
    #: From the socket to the hello (SEC-32), and for TLS before that (SEC-33).
    hello_timeout_s: float = 10.0
    tls_timeout_s: float = 5.0
    #: To answer what a starting node asks, which may need a majority of the catalog.
    describe_timeout_s: float = 10.0
    #: Connections that have not introduced themselves, of one address and of all (SEC-34).
    unauthenticated_per_address_max: int = 32
    unauthenticated_max: int = 128
    dial_timeout_s: float = 2.0
    backoff_min_s: float = 0.05
    backoff_max_s: float = 1.0
    #: HTTP/2's own probe of a silent connection; the node heartbeat notices sooner.
    keepalive_time_ms: int = 10_000
    keepalive_timeout_ms: int = 5_000


@dataclass(slots=True)
class HostConfig:
    """Settings of a node's Raft host."""

    #: Streams are refused to and from another cluster (SEC-4).
    cluster_id: str = "brokerd"
    #: Without TLS: a secret that members show each other.  Empty: none is asked for.
    secret: str = field(default="", repr=False)
    tls: TlsFiles | None = None
    raft: RaftConfig = field(default_factory=RaftConfig)
    transport: TransportConfig = field(default_factory=TransportConfig)
    #: A Liveness frame goes to every peer this often, whether or not there is other traffic.
    heartbeat_ms: int = 250
    #: Silence after which a node is suspected: several lost heartbeats, less than an election.
    suspicion_ms: int = 1_500
    #: A node that broke its stream and refuses connections for so long is suspected: a killed
    #: process is noticed without waiting for silence.
    refused_ms: int = 250
    #: Bytes of other nodes' commands of one group that wait for an answer; beyond it OVERLOADED.
    requests_bytes_max: int = 64 * MIB
    #: Groups at rest that stay as they are, those that were used last; others are folded.
    rested_max: int = 1_000
    #: The log receives the live ranges of changed groups, and collects dead segments, this often.
    collect_interval_ms: int = 5_000
    #: Groups whose live ranges it receives per round; the others wait for the next.
    collect_groups_max: int = 64


@dataclass(slots=True)
class ClientConfig:
    """Limits of the group client."""

    #: Bytes of one group's commands that are on the way at once; the others wait here.
    inflight_bytes: int = 16 * MIB
    inflight_commands: int = 4_096
    retry_min_ms: int = 10
    retry_max_ms: int = 500
    #: Answers to a command of a line that the one before it has not arrived, while nothing before
    #: it is on the way: about 5 s, in which copies on old streams have come or never will.
    early_max: int = 16
