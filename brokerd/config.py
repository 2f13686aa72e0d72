"""Configuration of a member: every setting and limit of the product, its default, unit and reason.

Sources, later ones win: defaults, a TOML file (`--config`), environment variables
`BROKERD_<SECTION>_<KEY>`, command-line flags.  Pure rooms get small config objects of their own.

A name with `OPTIONAL_` before it is a setting for members that know it: who renders settings for
members of several releases, as the operator does, marks what the older ones lack.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, cast
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from brokerd import config_sources
from brokerd.config_problems import ConfigError as ConfigError
from brokerd.config_sources import flattened
from brokerd.core import alarms, profiles

MIB = 1024 * 1024
#: Of the name of a host or zone; a DNS name has at most as many.
DOMAIN_CHARACTERS_MAX = 253
#: Names of hosts and zones, as listings can show them.
_DOMAIN = r"^[!-~]*$"
#: Of a member's name, which names a folder: file systems allow 255 bytes.
MEMBER_NAME_CHARACTERS_MAX = 200
_MEMBER_NAME = re.compile(rf"(?!\.+$)[^\s/\\,=\x00-\x1f\x7f]{{1,{MEMBER_NAME_CHARACTERS_MAX}}}")
#: The highest port that TCP has.
PORT_MAX = 65_535
#: What cluster.name is if nobody says: as good as none for those outside (R-FED-8).
CLUSTER_NAME = "brokerd"


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class NodeConfig(_Section):
    """This member."""

    name: str = Field(
        default="",
        description="member name; default: brokerd@<host name>, of a lone member with a data_dir "
        "the one that it has been",
    )
    data_dir: str = Field(
        default="", description="where the log lies; default: see `brokerd serve`"
    )
    bind: str = Field(
        default="",
        description="address of the AMQP and gRPC listeners; default: all, IPv4 and IPv6",
    )
    port_offset: int = Field(default=0, ge=0, le=60_000, description="added to every port")
    host: str = Field(
        default="",
        max_length=DOMAIN_CHARACTERS_MAX,
        pattern=_DOMAIN,
        description="machine that this member runs on, by any name: replicas of a quorum queue "
        "are kept off one host; default: unknown, each member on its own",
    )
    zone: str = Field(
        default="",
        max_length=DOMAIN_CHARACTERS_MAX,
        pattern=_DOMAIN,
        description="failure domain of the host, such as an availability zone; replicas of a "
        "quorum queue are spread evenly over zones; default: unknown",
    )

    @field_validator("name")
    @classmethod
    def _plain_name(cls, value: str) -> str:
        """Refuse what is no name of a folder, or cannot stand in cluster.members."""
        if value and not _MEMBER_NAME.fullmatch(value):
            raise ValueError(
                f"{value[:80]!r} is no member name: use one like brokerd@host, of at most "
                f"{MEMBER_NAME_CHARACTERS_MAX} characters, without slashes, spaces, = and commas"
            )
        return value


class ListenerConfig(_Section):
    """Ports before the offset; 0 turns a listener off."""

    amqp: int = Field(default=5672, ge=0, le=65_535, description="AMQP 0-9-1")
    amqps: int = Field(
        default=5671, ge=0, le=65_535, description="AMQP over TLS; needs tls.cert_file"
    )
    #: gRPC for administration, messages and telemetry.
    grpc: int = Field(default=5680, ge=0, le=65_535)
    #: gRPC between members; a lone member listens on loopback only.
    peer: int = Field(default=5690, ge=0, le=65_535)
    #: Health, metrics, telemetry report.
    http: int = Field(default=15692, ge=0, le=65_535)
    #: RabbitMQ's management HTTP API.
    management: int = Field(default=15672, ge=0, le=65_535)
    management_tls: int = Field(
        default=15671, ge=0, le=65_535, description="the same over TLS; needs tls.cert_file"
    )
    #: Backlog of the listening sockets (reconnect storms).
    backlog: int = Field(default=1024, ge=1)


class ProxyProtocolConfig(_Section):
    """Proxies before this member that say who their clients are (PROXY protocol, version 1, 2)."""

    #: Networks of such proxies (CIDR, comma-separated): connections from there to the ports of AMQP
    #: and of the management API must begin with the protocol's header; empty: there are none.
    trusted: str = ""

    @field_validator("trusted")
    @classmethod
    def _networks(cls, value: str) -> str:
        """Refuse what names no networks."""
        for word in value.replace(",", " ").split():
            try:
                ipaddress.ip_network(word, strict=False)
            except ValueError as error:
                raise ValueError(
                    f"{word[:80]!r} is no network: use one like 10.0.0.0/8 or an address"
                ) from error
        return value


class ClusterConfig(_Section):
    """How a member finds its cluster; the list counts until the member knows better itself."""

    name: str = Field(
        default=CLUSTER_NAME,
        description="the same on all members; by default other clusters know this one by a name "
        "made at its founding",
    )
    members: str = Field(default="", description="name=host:port,… of members to find the rest by")
    #: Names of those in `members` that found the cluster when it starts for the first time; empty:
    #: all of them.  The first seven by name do.  A member that is not among them joins the cluster
    #: that is there.
    initial_members: str = ""
    #: host:port at which the others reach this member; default: as `members` says, else the host's
    #: name and the peer port.
    address: str = ""
    #: What a member does that was removed from the cluster and starts again: `stop` with a message,
    #: or `wait` until it is added again (the operator's way).
    when_removed: Literal["stop", "wait"] = "stop"
    #: Last resort when the disks of a majority of the founders are lost: a founder with an empty
    #: disk votes at once, for whoever has data, though it may have forgotten confirmed messages.
    vote_with_empty_disk: bool = False
    secret: str = Field(default="", description="shared by all members; needed with several")
    #: Heartbeat from member to member, for all queues together.
    heartbeat_ms: int = Field(default=250, ge=20)
    #: A member that was silent for so long is suspected, and its leaderships are taken over.
    suspect_after_ms: int = Field(default=1500, ge=100)


class AuthConfig(_Section):
    """Users at the first start, and login limits."""

    create_guest: bool = Field(
        default=True, description="guest/guest, from loopback only; not if definitions bring users"
    )
    loopback_users: str = Field(
        default="guest", description="comma-separated; may not log in remotely"
    )
    #: An administrator made at the first start of a cluster, besides guest.
    admin_user: str = ""
    admin_password: str = ""
    #: A file with the password; better than the setting, which others can see in the environment.
    admin_password_file: str = ""
    #: Authority (PEM) of the operator's client certificates: who shows one with the alternative
    #: name URI:brokerd://operator administers over gRPC without a password.  The operator sets it.
    operator_ca_file: str = ""
    #: Which name of a client certificate is the user's (SASL EXTERNAL; needs tls.ca_file).
    certificate_login_from: Literal["distinguished_name", "common_name"] = "distinguished_name"
    #: Whether clients may log in with a password over a connection without TLS: always, from this
    #: machine only, or never (SEC-7); refused like a wrong password, the log has the reason.
    passwords_without_tls: Literal["allow", "loopback", "deny"] = "allow"
    #: User that an AMQP client without credentials becomes (SASL ANONYMOUS), with its rights and
    #: limits; empty: the mechanism is not offered.  A user of `loopback_users` still comes from
    #: this machine only.
    anonymous_login_user: str = ""
    #: What is stored of a password that is set: scrypt, or RabbitMQ's salted SHA-256, which a
    #: RabbitMQ takes and which is guessed many thousand times as fast.  For the way to a RabbitMQ.
    password_hashing: Literal["scrypt", "rabbit_password_hashing_sha256"] = "scrypt"
    #: scrypt cost 2**n: measured 47 ms for 14 and 97 ms for 15 on a busy core; a login may cost at
    #: most 100 ms (SEC-11).
    scrypt_log2_n: int = Field(default=14, ge=10, le=20)


def _table(value: Any) -> Any:
    """Read a table out of the environment, where it is JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value or "{}")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"expected a JSON object: {error}") from error


Table = Annotated[dict[str, str], BeforeValidator(_table)]
#: Algorithms of signatures with a public key.
TOKEN_ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"),
)


class _KeysSection(_Section):
    """Where the keys of tokens may be fetched."""

    @staticmethod
    def is_url_allowed(url: str, allow_http: bool) -> bool:
        """Tell whether keys may be fetched there: by HTTPS, or by HTTP from this machine."""
        try:
            parts = urlsplit(url)
            host = parts.hostname or ""
        except ValueError:
            return False
        if parts.scheme != "http" or not host:
            return parts.scheme == "https" and bool(host)
        try:
            is_here = ipaddress.ip_address(host).is_loopback
        except ValueError:
            is_here = host == "localhost"
        return is_here or allow_http

    def check_urls(self, allow_http: bool, **urls: str) -> None:
        """Refuse what keys may not be fetched from, by the settings' names."""
        for name, url in urls.items():
            if url and not self.is_url_allowed(url, allow_http):
                raise ValueError(
                    f"{name} = {url!r}: expected https://… (http:// only for this machine, or with "
                    "allow_http)"
                )


class OAuthConfig(_KeysSection):
    """Tokens of an OAuth 2 server as passwords (docs/concepts/tokens.md); off without keys. The
    words are those of RabbitMQ's OAuth 2 plugin.
    """

    #: Name of this broker at the OAuth 2 server: what `aud` must hold, and scopes begin with.
    resource_server_id: str = ""
    #: Before each scope that is meant for this broker; default: resource_server_id and a dot.
    scope_prefix: str | None = None
    #: URL of the server: `iss` must be this; its discovery document says where the keys are.
    issuer: str = ""
    #: URL of the keys (JWKS), without a discovery document.
    jwks_url: str = ""
    #: Keys in files (PEM), by the key id (`kid`) that tokens name; also beside a URL.
    signing_keys: Table = Field(default_factory=dict)
    #: Authority (PEM) of the server's certificate; default: those of the system.
    cacertfile: str = ""
    #: Whether keys may be fetched without TLS from other machines.
    allow_http: bool = False
    #: Signatures that are taken, with spaces between; the key must be of the same kind.
    algorithms: str = "RS256 RS384 RS512 PS256 PS384 PS512 ES256 ES384 ES512 EdDSA"
    #: Whether `aud` must name this broker.
    verify_aud: bool = True
    #: How far the clocks of server and broker may differ, seconds.
    leeway_s: int = Field(default=0, ge=0, le=600)
    #: Claims that name the user, the first that is there counts.
    preferred_username_claims: str = "sub client_id"
    #: More claims with scopes: paths, dots between their steps, spaces between paths.
    additional_scopes_key: str = ""
    #: Other names of scopes: to each the scopes that it stands for, spaces between them.
    scope_aliases: Table = Field(default_factory=dict)

    @property
    def is_on(self) -> bool:
        """Tell whether tokens are taken."""
        return bool(self.issuer or self.jwks_url or self.signing_keys)

    @property
    def prefix(self) -> str:
        """Return what stands before scopes."""
        return f"{self.resource_server_id}." if self.scope_prefix is None else self.scope_prefix

    @model_validator(mode="after")
    def _checked(self) -> OAuthConfig:
        self.check_urls(self.allow_http, issuer=self.issuer, jwks_url=self.jwks_url)
        if self.is_on and not self.resource_server_id:
            raise ValueError("resource_server_id is needed: tokens for others must not count here")
        unknown_ones = set(self.algorithms.split()).difference(TOKEN_ALGORITHMS)
        if unknown_ones:
            raise ValueError(
                f"algorithms: {', '.join(sorted(unknown_ones))}: there are "
                + ", ".join(TOKEN_ALGORITHMS)
            )
        return self


class KubernetesConfig(_KeysSection):
    """Tokens of Kubernetes ServiceAccounts as passwords (docs/concepts/tokens.md)."""

    #: What `iss` must be: `kubectl get --raw /.well-known/openid-configuration` says it.
    #: Empty: they are not taken.
    issuer: str = ""
    #: Where the cluster publishes its keys.
    jwks_url: str = "https://kubernetes.default.svc/openid/v1/jwks"
    #: Authority (PEM) of the API server's certificate; default: those of the system.
    cacertfile: str = ""
    #: Token of the member's own ServiceAccount, where the API server tells its keys only to those
    #: that it knows.
    token_file: str = ""
    #: Whether keys may be fetched without TLS from other machines.
    allow_http: bool = False
    #: What `aud` must hold: tokens for the API server or for others are no passwords here.
    audience: str = "brokerd"
    #: How far the clocks of the API server and the broker may differ, seconds.
    leeway_s: int = Field(default=0, ge=0, le=600)

    @property
    def is_on(self) -> bool:
        """Tell whether they are taken."""
        return bool(self.issuer)

    @model_validator(mode="after")
    def _checked(self) -> KubernetesConfig:
        self.check_urls(self.allow_http, jwks_url=self.jwks_url)
        if self.is_on and not self.audience:
            raise ValueError("audience is needed: tokens for others must not count here")
        return self


class TlsConfig(_Section):
    """Certificates of AMQPS and gRPC (PEM files)."""

    #: Certificate chain.
    cert_file: str = ""
    #: Private key; the file of the certificate when empty.
    key_file: str = ""
    #: Authority that signed the certificates of others.
    ca_file: str = ""


class SecretsConfig(_Section):
    """Secrets at rest: passwords in the URIs of federation upstreams (ADR 19)."""

    #: A file with keys, one a line, 32 bytes in base64 (`openssl rand -base64 32`), the same at all
    #: members: the first encrypts, all decrypt. Empty: a key is derived from cluster.secret; a lone
    #: member without one makes a key beside its data, which does not protect a stolen disk.
    key_file: str = ""


def _quantity(name: str, value: str) -> str:
    """Refuse what a running member would refuse, too (`brokerctl set_disk_free_limit`)."""
    problem = alarms.check_setting(name, value) if value.strip() else None
    if problem:
        raise ValueError(problem.removeprefix(f"{name}: "))
    return value


class MemoryConfig(_Section):
    """The watermark that blocks publishers (R-MEM)."""

    high_watermark: str = Field(
        default="", description="fraction (0.6) or absolute (2GiB); default: the profile's"
    )
    #: Whether the limit of the container counts; default: the profile's.
    cgroup_aware: bool | None = None
    total_override: str = Field(default="", description="total memory, with unit")
    #: How often memory and disk are measured.
    interval_ms: int = Field(default=1000, ge=50)

    @field_validator("high_watermark")
    @classmethod
    def _readable(cls, value: str) -> str:
        return _quantity("memory.high_watermark", value)

    @field_validator("total_override")
    @classmethod
    def _bytes(cls, value: str) -> str:
        if value:
            alarms.parse_bytes(value)
        return value


class DiskConfig(_Section):
    """Free space below which publishers are blocked (R-DSK)."""

    free_limit: str = Field(default="50MB", description="absolute, with unit")

    @field_validator("free_limit")
    @classmethod
    def _readable(cls, value: str) -> str:
        return _quantity("disk.free_limit", value)


class QueueConfig(_Section):
    """Defaults of queues."""

    #: Type of a queue that is declared without x-queue-type.
    default_type: Literal["classic", "quorum"] = "classic"
    #: Members of a quorum queue that is declared without x-quorum-initial-group-size.
    quorum_group_size: int = Field(default=3, ge=1, le=9)
    #: How long a suspected node keeps its consumers' messages (R-QQ-16).
    disconnected_timeout_ms: int = Field(default=60_000, ge=0)
    #: How long a classic queue's home member may be silent before the queue refuses what it is
    #: asked, or counts as gone if it does not outlive its home (exclusive, transient).
    home_down_after_ms: int = Field(default=5_000, ge=1_000)
    #: How long that silence lasts before queues that do not outlive their home are deleted, so that
    #: a pause of some seconds takes nothing away.
    home_down_delete_ms: int = Field(default=60_000, ge=1_000)
    #: How long a consumer of a quorum queue may leave a message unsettled (R-QQ-22); 0: for ever.
    #: Classic queues have a time-out by argument or policy only.
    consumer_timeout_ms: int = Field(default=1_800_000, ge=0)


class LimitConfig(_Section):
    """Bounds on what outsiders may make the broker hold."""

    #: Open connections of this member; the next one is refused after its login.
    connections: int = Field(default=20_000, ge=1)
    #: Connections that have not finished their handshake (SEC-34); for one more, the one that has
    #: waited longest is dropped, of the address that has most.
    unauthenticated: int = Field(default=1_000, ge=1)
    #: The same of one IPv4 address or IPv6 network of 64 bits.
    unauthenticated_per_address: int = Field(default=500, ge=1)
    #: Connections to the gRPC port, with up to 1,000 calls each; strangers' make room for others
    #: first.
    grpc_connections: int = Field(default=4_000, ge=1)
    grpc_connections_per_address: int = Field(default=2_000, ge=1)
    #: Bytes of gRPC requests that are unfinished or not handled yet, of all connections together.
    grpc_request_bytes: int = Field(default=128 * MIB, ge=32 * MIB)
    #: Proposed in connection.tune; 0 means no limit.
    channel_max: int = Field(default=2047, ge=0)
    #: Proposed in connection.tune, bytes; 0 means no limit.
    frame_max: int = Field(default=131_072, ge=0)
    #: Proposed in connection.tune; 0 turns heartbeats off.
    heartbeat_s: int = Field(default=60, ge=0)
    #: From the first byte to connection.open; over gRPC to the first call of a known user.
    handshake_timeout_ms: int = Field(default=10_000, ge=100)
    #: Open channels of this member; 0 means no limit.
    channels: int = Field(default=0, ge=0)
    consumers_per_channel: int = Field(default=10_000, ge=1)
    #: Bytes published on one connection whose queues have not answered; over it reading stops.
    unconfirmed_bytes: int = Field(default=16 * MIB, ge=1)
    #: Bytes on their way to one queue from this member, unanswered; over it the connections that
    #: send it most are not read, over twice as much all that send it something.
    queue_unconfirmed_bytes: int = Field(default=32 * MIB, ge=1)
    #: Bytes published in one transaction and not committed; over it the channel is closed.
    transaction_bytes: int = Field(default=128 * MIB, ge=1)
    #: Bytes written to one socket and not yet taken by the peer; over it deliveries wait.
    write_buffer_bytes: int = Field(default=4 * MIB, ge=1)
    #: A peer that takes none of them for so long is closed (SEC-45).
    write_timeout_ms: int = Field(default=60_000, ge=1000)
    #: Body of a request to the management HTTP API (RabbitMQ's bound is as large).
    management_body_bytes: int = Field(default=16 * MIB, ge=1024)
    #: Connections to the management HTTP API; over it, and over the one of an address, the one
    #: that is longest without a request makes room.
    management_connections: int = Field(default=1_024, ge=1)
    management_connections_per_address: int = Field(default=512, ge=1)
    #: How long a declare, delete or bind may wait for a majority.
    operation_timeout_ms: int = Field(default=20_000, ge=100)


class CompatConfig(_Section):
    """Behaviour profile (docs/concepts/profiles.md)."""

    #: brokerd, rabbitmq-4.3, rabbitmq-3.13, rabbitmq-3.10, reference, mrg; `a+b` lays b over a.
    profile: str = "brokerd"
    #: Single switches over the profile (the table below): a table in the file,
    #: as in `switches.dlx.strip_cc_on_rk = true`; in the environment one variable per switch,
    #: BROKERD_COMPAT_DLX_STRIP_CC_ON_RK=true.
    switches: dict[str, bool | int | float | str] = Field(default_factory=dict)

    @field_validator("switches", mode="before")
    @classmethod
    def _flat(cls, value: Any) -> Any:
        """TOML reads `dlx.strip_cc_on_rk = true` as a table in a table."""
        return flattened(value) if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _known(self) -> CompatConfig:
        """Refuse what no profile or switch is called, where all wrong settings are refused."""
        profiles.configured(self.profile, self.switches)
        return self


class TelemetryConfig(_Section):
    """Counting to files (design/telemetry.md §6)."""

    enabled: bool = True
    #: One row per changed object in each interval.
    interval_ms: int = Field(default=10_000, ge=100)
    #: A segment is sealed at this size or this age, whichever comes first.
    segment_bytes: int = Field(default=8 * MIB, ge=4096)
    segment_ms: int = Field(default=300_000, ge=1000)
    #: Sealed segments that were not fetched are kept up to this size and this age.
    retention_bytes: int = Field(default=256 * MIB, ge=MIB)
    retention_hours: int = Field(default=48, ge=1)


class DefinitionsConfig(_Section):
    """Users, vhosts, rights, policies and topology that are there after the start."""

    #: A definitions file of RabbitMQ or brokerd (JSON), or a folder whose *.json are loaded by
    #: name: RabbitMQ's load_definitions.  Loaded at each start, before clients come; what is there
    #: already stays.  With users in it, guest is not made.
    path: str = ""
    #: Leave out what is not here (streams, exchanges of other types, what is bound to them) and
    #: log each; otherwise such an object ends the start.
    skip_unsupported: bool = False
    #: Leave out what was loaded last, so that what changed in the broker meanwhile stays changed.
    skip_if_unchanged: bool = False


class StorageConfig(_Section):
    """The write-ahead log."""

    #: Size of a file of the log.
    segment_bytes: int = Field(default=64 * MIB, ge=MIB)
    #: Recent message bodies kept in memory, for all queues together.
    cache_bytes: int = Field(default=64 * MIB, ge=MIB)
    #: A write or sync of the log that has not returned after so long is a stall of the disk: the
    #: alarm disk_stalled, and the member is not ready (ADR 68). 0: there are none.
    stall_ms: int = Field(default=5_000, ge=0)
    #: After so long a stall other members lead what this one leads, as far as they can.
    stall_leaders_ms: int = Field(default=10_000, ge=0)


class LogConfig(_Section):
    """Log lines on stderr."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["text", "json"] = "text"


class AuditConfig(_Section):
    """Who changed what (docs/operations.md, audit log)."""

    #: Where records go: to a file of their own, to the ordinary log, or nowhere.
    destination: Literal["file", "log", "none"] = "file"
    #: The file; default: `audit.log` in the data directory.
    path: str = ""
    #: Of one file; it is renamed then, and a new one begun.
    file_bytes: int = Field(default=16 * MIB, ge=64 * 1024)
    #: How many there are at most, the one that is written included.
    files: int = Field(default=4, ge=1, le=1000)


class BrokerConfig(_Section):
    """All of it."""

    node: NodeConfig = NodeConfig()
    listeners: ListenerConfig = ListenerConfig()
    proxy_protocol: ProxyProtocolConfig = ProxyProtocolConfig()
    cluster: ClusterConfig = ClusterConfig()
    auth: AuthConfig = AuthConfig()
    oauth2: OAuthConfig = OAuthConfig()
    kubernetes: KubernetesConfig = KubernetesConfig()
    tls: TlsConfig = TlsConfig()
    peer_tls: TlsConfig = TlsConfig()
    secrets: SecretsConfig = SecretsConfig()
    memory: MemoryConfig = MemoryConfig()
    disk: DiskConfig = DiskConfig()
    queues: QueueConfig = QueueConfig()
    limits: LimitConfig = LimitConfig()
    compat: CompatConfig = CompatConfig()
    telemetry: TelemetryConfig = TelemetryConfig()
    definitions: DefinitionsConfig = DefinitionsConfig()
    storage: StorageConfig = StorageConfig()
    log: LogConfig = LogConfig()
    audit: AuditConfig = AuditConfig()

    @model_validator(mode="after")
    def _ports_exist(self) -> BrokerConfig:
        """Refuse an offset that moves a listener beyond the last port."""
        highest = max(ListenerConfig.model_fields, key=self._base_port)
        if self.port(highest) > PORT_MAX:
            raise ValueError(
                f"node.port_offset: {self.node.port_offset} moves listeners.{highest} "
                f"({self._base_port(highest)}) beyond port {PORT_MAX}: use at most "
                f"{PORT_MAX - self._base_port(highest)}"
            )
        return self

    def _base_port(self, listener: str) -> int:
        base: int = getattr(self.listeners, listener)
        return 0 if listener == "backlog" else base

    def port(self, listener: str) -> int:
        """Return the port of a listener with the offset added; 0 when it is off."""
        base: int = getattr(self.listeners, listener)
        return base + self.node.port_offset if base else 0

    @property
    def peer_host(self) -> str:
        """Return where the peer port listens: of a lone member on loopback, nobody else has
        business there.
        """
        if self.node.bind:
            return self.node.bind
        is_alone = not (self.cluster.members or self.cluster.address)
        return "127.0.0.1" if is_alone else "[::]"

    @property
    def node_name(self) -> str:
        """Return the member's name."""
        return self.node.name or f"brokerd@{socket.gethostname().split('.')[0]}"

    @property
    def data_dir(self) -> Path:
        """Return the data directory: as set, else below XDG_STATE_HOME, one folder per member."""
        if self.node.data_dir:
            return Path(self.node.data_dir)
        state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
        return Path(state) / "brokerd" / self.node_name


#: Their models; those whose name has an underscore must be tried before the shorter ones.
_SECTIONS: dict[str, type[BaseModel]] = {
    section: cast(type[BaseModel], BrokerConfig.model_fields[section].annotation)
    for section in sorted(BrokerConfig.model_fields, key=len, reverse=True)
}


def load(
    file: Path | None, environ: Mapping[str, str], flags: Mapping[str, Mapping[str, Any]]
) -> BrokerConfig:
    """Merge file, environment and flags; raise ConfigError with a line per wrong setting."""
    given = config_sources.gather(_SECTIONS, file, environ, flags)
    return given.checked(BrokerConfig)


def unknown(environ: Mapping[str, str]) -> list[str]:
    """Return the optional settings that this release does not know; they change nothing."""
    return config_sources.unknown(_SECTIONS, environ)
