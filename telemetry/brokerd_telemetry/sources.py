"""Where segments come from: the members' gRPC service, a directory, or object storage.

design/telemetry.md §6.4.

A pulled segment is kept below `raw/v1/` once its size and sha256 are what the member said; the job
tells segments apart by their names, so pulling twice does no harm.  Results go back the same way.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from brokerd.rpc.v1 import telemetry_pb2, telemetry_pb2_grpc
from brokerd_telemetry import schema, verify
from brokerd_telemetry.commit import write_durably

if TYPE_CHECKING:
    from brokerd_telemetry.objects import Place

SEAL_TIMEOUT_S = 60.0
CALL_TIMEOUT_S = 60.0
#: A member seals at 8 MiB of text by default; more than this is refused as hostile.
SEGMENT_BYTES_MAX = 64 * 1024 * 1024
SEGMENTS_MAX = 1_000_000
#: More members than any cluster has.
MEMBERS_MAX = 1_000
MEMBERS_AT_ONCE = 16
#: Any member names all others; one that has just started may not.
ROUNDS_MAX = 2
#: What a member may name as the address of another.
_ADDRESS = re.compile(r"[A-Za-z0-9._:\[\]-]{1,300}:\d{1,5}")
CHUNK_BYTES = 256 * 1024
#: How gRPC begins what it says of an address at which no member listens.
_NO_CONNECTION = "failed to connect to all addresses"


class SourceError(Exception):
    """A source could not be asked."""


@dataclass(slots=True, frozen=True)
class Access:
    """How to reach the members."""

    addresses: tuple[str, ...]
    user: str = "guest"
    password: str = field(default="guest", repr=False)
    ca_file: Path | None = None

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the credentials of a call (RFC 7617)."""
        token = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        return (("authorization", f"Basic {token}"),)

    def channel(self, address: str) -> grpc.Channel:
        """Open a channel to one member."""
        options = [("grpc.enable_http_proxy", 0)]
        if self.ca_file is not None:
            credentials = grpc.ssl_channel_credentials(self.ca_file.read_bytes())
            return grpc.secure_channel(address, credentials, options)
        return grpc.insecure_channel(address, options)


@dataclass(slots=True, frozen=True)
class Source:
    """Where the segments of a cluster come from: exactly one of access, directory and place."""

    #: namespace/name; None: every cluster that is found there.
    cluster: str | None = None
    access: Access | None = None
    directory: Path | None = None
    place: Place | None = None

    def __str__(self) -> str:
        if self.cluster is not None:
            return self.cluster
        where = self.directory if self.place is None else self.place.url
        return str(where) if self.access is None else ", ".join(self.access.addresses)


@dataclass(slots=True)
class Pulled:
    """What came."""

    segments: int = 0
    size_bytes: int = 0
    #: (address, what is wrong with it).
    failed: list[tuple[str, str]] = field(default_factory=list)
    #: Addresses of the members that answered.
    reached: list[str] = field(default_factory=list)
    #: Members that did not, and why: by name, or by address where names are not known.
    absent: dict[str, str] = field(default_factory=dict)
    #: By name of a member, by how many seconds its clock is ahead of the one here, where that is
    #: schema.CLOCK_S_MIN or more.
    clocks: dict[str, float] = field(default_factory=dict)


#: Takes the path of a segment and what reads it; returns the octets that it took.
Take = Callable[[str, Callable[[], bytes]], int]


def pull(
    access: Access,
    raw_dir: Path,
    known: Collection[str],
    say: Callable[[str], None],
    cluster: str | None = None,
) -> Pulled:
    """Fetch what each member has and this directory has not; SourceError if none answers.

    cluster: whose members they are; what they say of others is left where it is.
    """
    folder = "" if cluster is None else f"{verify.cluster_folder(cluster)}/"

    def keep(path: str, read: Callable[[], bytes]) -> int:
        target = raw_dir / path
        if path in known or not path.startswith(folder) or target.exists():
            return 0
        data = read()
        write_durably(target, data)
        return len(data)

    return each_segment(access, keep, say)


def each_segment(access: Access, take: Take, say: Callable[[str], None]) -> Pulled:
    """Offer the segments of all members, those too that the given ones name; SourceError if no
    member answers.
    """
    found = _Asked(access, say)
    found.ask(access.addresses)
    for _ in range(ROUNDS_MAX):
        found.ask(found.unasked())
    pulled = Pulled(failed=found.failed)
    for address, sealed in list(found.sealed.items()):
        try:
            with access.channel(address) as channel:
                _offer_member(_stub(channel), access, sealed, take, pulled)
        except (grpc.RpcError, OSError, ValueError) as error:
            found.give_up(address, error)
    if not found.sealed:
        raise SourceError(
            "none of the members could be asked: "
            + "; ".join(f"{address}: {text}" for address, text in found.failed)
        )
    pulled.reached = list(found.sealed)
    pulled.absent = found.absent()
    pulled.clocks = found.clocks
    return pulled


class _Asked:
    """Members that were asked to seal what they have.

    All at one time: of an hour that goes on they then have told equally much.
    """

    def __init__(self, access: Access, say: Callable[[str], None]) -> None:
        self._access = access
        self._say = say
        #: By address, what a member said.
        self.sealed: dict[str, Any] = {}
        self.failed: list[tuple[str, str]] = []
        #: Address of each member that any of them names.
        self._members: dict[str, str] = {}
        #: Those that have said their name.
        self._heard: dict[str, str] = {}
        #: Of Pulled.
        self.clocks: dict[str, float] = {}

    def ask(self, addresses: Collection[str]) -> None:
        """Have these seal."""
        with ThreadPoolExecutor(MEMBERS_AT_ONCE) as pool:
            answers = list(pool.map(self._seal, addresses))
        for address, found in zip(addresses, answers, strict=True):
            if isinstance(found, Exception):
                self.give_up(address, found)
                continue
            answer, ahead_s = found
            self.sealed[address] = answer
            for member in answer.members:
                self._members[member.name] = member.address or self._members.get(member.name, "")
                if member.is_self:
                    self._heard[member.name] = address
                    if ahead_s:
                        self.clocks[member.name] = ahead_s

    def _seal(self, address: str) -> tuple[Any, float] | Exception:
        """Return a member's answer, and by how many seconds its clock is ahead; 0: by little."""
        began_s = time.time()
        try:
            with self._access.channel(address) as channel:
                # Everything up to this moment, not up to the last rotation.
                sealed = _stub(channel).Seal(
                    telemetry_pb2.SealRequest(),
                    metadata=self._access.metadata(),
                    timeout=SEAL_TIMEOUT_S,
                )
            if len(sealed.segments) > SEGMENTS_MAX or len(sealed.members) > MEMBERS_MAX:
                raise ValueError("it lists too many segments or members")
            return sealed, _ahead_s(sealed.now_us, began_s, time.time())
        except (grpc.RpcError, OSError, ValueError) as error:
            return error

    def give_up(self, address: str, error: Exception) -> None:
        """Note that a member does not answer, or says what cannot be."""
        self.sealed.pop(address, None)
        text = str(error)
        if isinstance(error, grpc.RpcError):
            text = error.details() or ""
            if text.startswith(_NO_CONNECTION):
                # The rest names the address once more.
                text = text.rpartition(": ")[2]
        self._say(f"member {address} cannot be asked: {text}")
        self.failed.append((address, str(text)))

    def unasked(self) -> list[str]:
        """Return addresses of members that have not been asked."""
        asked = {*self.sealed, *(address for address, _ in self.failed)}
        others = {at for name, at in self._members.items() if name not in self._heard}
        return sorted(at for at in others - asked if _ADDRESS.fullmatch(at))

    def absent(self) -> dict[str, str]:
        """Return who did not answer, and why: by name, or by address where no member told names."""
        failed = dict(self.failed)
        if not self._members:
            return failed
        found = {}
        for name, address in self._members.items():
            at = self._heard.get(name, address)
            if at not in self.sealed:
                found[name] = failed.get(at, "") or "none of the others has heard where it is"
        return found


def _ahead_s(now_us: int, began_s: float, ended_s: float) -> float:
    """Return by how much a clock is ahead that was looked at between two times, 0 where that may be
    little, or an earlier version did not tell.
    """
    ahead_s = now_us / 1e6 - (began_s + ended_s) / 2
    is_off = abs(ahead_s) - (ended_s - began_s) / 2 >= schema.CLOCK_S_MIN
    return round(ahead_s, 1) if now_us and is_off else 0.0


def _stub(channel: grpc.Channel) -> Any:
    return telemetry_pb2_grpc.TelemetryStub(channel)  # type: ignore[no-untyped-call]


def _offer_member(stub: Any, access: Access, sealed: Any, take: Take, pulled: Pulled) -> None:
    metadata = access.metadata()
    for item in sealed.segments:
        if verify.SEGMENT_PATH.fullmatch(item.path) is None:
            raise ValueError(f"it lists a segment named '{item.path[:200]}'")
        taken = take(item.path, partial(_read, stub, metadata, item))
        pulled.segments += taken > 0
        pulled.size_bytes += taken


def _read(stub: Any, metadata: Any, item: Any) -> bytes:
    if item.size > SEGMENT_BYTES_MAX:
        raise ValueError(f"segment of {item.size} octets")
    data = bytearray()
    request = telemetry_pb2.ReadSegmentRequest(path=item.path)
    for chunk in stub.ReadSegment(request, metadata=metadata, timeout=CALL_TIMEOUT_S):
        data += chunk.data
        if len(data) > item.size:
            break
    if len(data) != item.size or hashlib.sha256(data).hexdigest() != item.sha256:
        raise ValueError(f"segment {item.path} is not what it was said to be")
    return bytes(data)


def release(access: Access, paths: set[str], say: Callable[[str], None]) -> None:
    """Let the members delete what is committed; one that is away deletes it by age."""
    for address in access.addresses:
        try:
            with access.channel(address) as channel:
                stub = _stub(channel)
                metadata = access.metadata()
                listed = stub.ListSegments(
                    telemetry_pb2.ListSegmentsRequest(), metadata=metadata, timeout=CALL_TIMEOUT_S
                )
                there = [item.path for item in listed.segments if item.path in paths]
                request = telemetry_pb2.ReleaseRequest(paths=there)
                stub.Release(request, metadata=metadata, timeout=CALL_TIMEOUT_S)
        except grpc.RpcError as error:
            say(f"member {address} keeps its segments: {error.details()}")


def put_results(access: Access, files: dict[str, bytes], say: Callable[[str], None]) -> int:
    """Hand the results to the members, which serve them; return how many took them."""
    taken = 0
    for address in access.addresses:
        try:
            with access.channel(address) as channel:
                _stub(channel).PutResult(
                    _chunks(files), metadata=access.metadata(), timeout=CALL_TIMEOUT_S
                )
            taken += 1
        except grpc.RpcError as error:
            say(f"member {address} did not take the report: {error.details()}")
    return taken


def _chunks(files: dict[str, bytes]) -> Iterator[Any]:
    for name, data in files.items():
        for start in range(0, max(1, len(data)), CHUNK_BYTES):
            yield telemetry_pb2.ResultChunk(name=name, data=data[start : start + CHUNK_BYTES])


def listed(raw_dir: Path, cluster: str | None = None) -> list[str]:
    """Return the segments in a directory (of one cluster), as paths below it; SourceError if a
    folder cannot be read: tables of a part would say that there is no more.
    """
    found = []
    top = raw_dir if cluster is None else raw_dir / verify.cluster_folder(cluster)
    for folder, _, names in os.walk(top, onerror=_unreadable):
        found += [
            Path(folder, name).relative_to(raw_dir).as_posix()
            for name in names
            if name.endswith(".jsonl.gz")
        ]
    return sorted(found)


def _unreadable(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise SourceError(
            f"{error.filename} cannot be read: {error.strerror}; let the job's user read it"
        ) from error


def raw_root(directory: Path) -> Path:
    """Return the directory that `cluster=…` lies in, given that or one above it."""
    for candidate in (directory / "raw" / "v1", directory / "v1", directory):
        if candidate.is_dir():
            return candidate
    raise SourceError(f"{directory} is no directory of segments")
