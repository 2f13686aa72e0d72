"""Pulling from members: what they say is checked before it is kept."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from brokerd_telemetry import sources
from brokerd_telemetry.sources import Access, SourceError

from brokerd.rpc.v1 import telemetry_pb2, telemetry_pb2_grpc

PATH = "cluster=c/node=n/dt=2026-11-20/hh=14/sample.ab.000000.0-0.1.jsonl.gz"


class Member(telemetry_pb2_grpc.TelemetryServicer):
    """A member that says what a test wants."""

    def __init__(self) -> None:
        self.segments = {PATH: b"data" * 100_000}
        self.claimed_size: int | None = None
        self.claimed_digest: str | None = None
        self.reads = 0
        self.results: dict[str, bytes] = {}
        self.authorization = ""
        #: Name, address, is it this one.
        self.members: list[tuple[str, str, bool]] = []
        #: By how much its clock is ahead; None: of a version that does not tell.
        self.ahead_s: float | None = None

    def _rows(self) -> list[Any]:
        return [
            telemetry_pb2.Segment(
                path=path,
                size=len(data) if self.claimed_size is None else self.claimed_size,
                sha256=self.claimed_digest or hashlib.sha256(data).hexdigest(),
            )
            for path, data in self.segments.items()
        ]

    def Seal(self, request: Any, context: Any) -> Any:
        self.authorization = dict(context.invocation_metadata())["authorization"]
        members = [
            telemetry_pb2.ClusterMember(name=name, address=address, is_self=is_self)
            for name, address, is_self in self.members
        ]
        now_us = 0 if self.ahead_s is None else time.time_ns() // 1000 + int(self.ahead_s * 1e6)
        return telemetry_pb2.SealResponse(segments=self._rows(), members=members, now_us=now_us)

    def ListSegments(self, request: Any, context: Any) -> Any:
        return telemetry_pb2.ListSegmentsResponse(segments=self._rows())

    def ReadSegment(self, request: Any, context: Any) -> Any:
        self.reads += 1
        data = self.segments[request.path]
        for start in range(0, len(data), 65_536):
            yield telemetry_pb2.SegmentChunk(data=data[start : start + 65_536])

    def Release(self, request: Any, context: Any) -> Any:
        for path in request.paths:
            del self.segments[path]
        return telemetry_pb2.ReleaseResponse(released=len(request.paths))

    def PutResult(self, request_iterator: Any, context: Any) -> Any:
        for chunk in request_iterator:
            self.results[chunk.name] = self.results.get(chunk.name, b"") + chunk.data
        return telemetry_pb2.PutResultResponse()


@contextmanager
def serving() -> Iterator[tuple[Member, str]]:
    made = Member()
    with futures.ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool)
        telemetry_pb2_grpc.add_TelemetryServicer_to_server(made, server)  # type: ignore[no-untyped-call]
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield made, f"127.0.0.1:{port}"
        server.stop(None).wait()


@pytest.fixture
def member() -> Iterator[tuple[Member, str]]:
    with serving() as made:
        yield made


def pull(address: str, raw: Path, known: set[str] | None = None) -> sources.Pulled:
    return sources.pull(Access((address,)), raw, known or set(), lambda _: None)


@pytest.mark.parametrize(
    ("ahead_s", "found"),
    [(None, {}), (0.0, {}), (3.0, {}), (300.0, {"n": 300}), (-60.0, {"n": -60})],
)
def test_a_clock_that_differs_from_the_one_here_is_noticed(
    member: tuple[Member, str], tmp_path: Path, ahead_s: float | None, found: dict[str, int]
) -> None:
    """A lone member has no others who know better."""
    served, address = member
    served.ahead_s, served.members = ahead_s, [("n", address, True)]
    clocks = pull(address, tmp_path).clocks
    assert {name: round(skew_s) for name, skew_s in clocks.items()} == found


def test_a_clock_is_not_judged_by_an_answer_that_took_as_long_as_it_may_be_off() -> None:
    assert sources._ahead_s(110_000_000, 100.0, 101.0) == 9.5
    assert sources._ahead_s(110_000_000, 100.0, 112.0) == 0.0


def test_why_a_member_did_not_answer_names_its_address_no_second_time(
    member: tuple[Member, str], tmp_path: Path
) -> None:
    served, address = member
    # Nothing listens there.
    served.members = [("n", address, True), ("o", "127.0.0.1:1", False)]
    assert pull(address, tmp_path).absent == {"o": "Connection refused"}


def test_what_is_new_is_fetched_once(member: tuple[Member, str], tmp_path: Path) -> None:
    served, address = member
    assert pull(address, tmp_path).segments == 1
    assert (tmp_path / PATH).read_bytes() == served.segments[PATH]
    assert pull(address, tmp_path).segments == 0
    (tmp_path / PATH).unlink()
    assert pull(address, tmp_path, {PATH}).segments == 0
    assert served.reads == 1
    assert served.authorization == "Basic Z3Vlc3Q6Z3Vlc3Q="


@pytest.mark.parametrize(
    ("size", "digest"), [(None, "0" * 64), (5, None), (10**12, None), (400_001, None)]
)
def test_a_segment_that_is_not_what_was_said_is_not_kept(
    member: tuple[Member, str], tmp_path: Path, size: int | None, digest: str | None
) -> None:
    served, address = member
    served.claimed_size, served.claimed_digest = size, digest
    with pytest.raises(SourceError, match="none of the members"):
        pull(address, tmp_path)
    assert not list(tmp_path.rglob("*.gz"))


@pytest.mark.parametrize("path", ["../../evil.jsonl.gz", "/etc/passwd", "a" * 5000])
def test_a_member_cannot_write_elsewhere(
    member: tuple[Member, str], tmp_path: Path, path: str
) -> None:
    served, address = member
    served.segments = {path: b"x"}
    with pytest.raises(SourceError, match="it lists a segment named"):
        pull(address, tmp_path / "raw")
    assert not list(tmp_path.iterdir())


def test_a_member_that_is_away_does_not_stop_the_others(
    member: tuple[Member, str], tmp_path: Path
) -> None:
    _, address = member
    said: list[str] = []
    access = Access(("127.0.0.1:1", address))
    pulled = sources.pull(access, tmp_path, set(), said.append)
    assert pulled.segments == 1
    assert [failed for failed, _ in pulled.failed] == ["127.0.0.1:1"]
    assert "127.0.0.1:1" in said[0]


def test_results_go_to_the_member_and_release_deletes(member: tuple[Member, str]) -> None:
    served, address = member
    access = Access((address,))
    page = b"<html>" * 200_000
    assert sources.put_results(access, {"report.html": page}, print) == 1
    assert served.results == {"report.html": page}
    sources.release(access, {PATH, "another"}, print)
    assert served.segments == {}


def test_a_password_is_not_in_the_text_of_an_error() -> None:
    assert "hunter2" not in repr(Access(("a",), "u", "hunter2"))


def test_one_address_finds_all_members_and_who_does_not_answer_is_named(
    member: tuple[Member, str], tmp_path: Path
) -> None:
    """The second is found by the first; the third is down, of the fourth nothing was ever heard."""
    served, address = member
    with serving() as (other, other_address):
        other.segments = {PATH.replace("node=n", "node=m"): b"more"}
        down = "127.0.0.1:1"
        all_of_them = [("n", address), ("m", other_address), ("o", down), ("p", "")]
        for name, one in (("n", served), ("m", other)):
            one.members = [(each, at, each == name) for each, at in all_of_them]
        pulled = pull(address, tmp_path)
    assert pulled.segments == 2
    assert sorted(pulled.reached) == sorted([address, other_address])
    assert set(pulled.absent) == {"o", "p"}
    assert pulled.absent["o"] == dict(pulled.failed)[down]
    assert "has heard" in pulled.absent["p"]


def test_a_member_that_answers_at_another_address_is_not_absent(
    member: tuple[Member, str], tmp_path: Path
) -> None:
    """The given address does not work, the one that the others know does."""
    served, address = member
    with serving() as (other, other_address):
        other.segments = {}
        for name, one in (("n", served), ("m", other)):
            known = [("n", address), ("m", other_address)]
            one.members = [(each, at, each == name) for each, at in known]
        access = Access(("127.0.0.1:1", address))
        pulled = sources.pull(access, tmp_path, set(), lambda _: None)
    assert pulled.absent == {}
    assert [failed for failed, _ in pulled.failed] == ["127.0.0.1:1"]
