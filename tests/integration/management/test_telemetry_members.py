"""Three real members and a job that is told of one: it finds the others, knows who is missing, and
what went with queues that are gone.
"""

from __future__ import annotations

import gzip
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from brokerd_telemetry import sources

from tests.integration.members import Member, cluster, eventually

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Member]]:
    with cluster(tmp_path_factory.mktemp("telemetry"), 3) as members:
        yield members


def pull(member: Member, raw: Path) -> sources.Pulled:
    access = sources.Access((f"127.0.0.1:{member.grpc_port}",))
    return sources.pull(access, raw, set(), print)


def rows(raw: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for path in sources.listed(raw)
        for line in gzip.decompress((raw / path).read_bytes()).splitlines()
    ]


def test_one_address_finds_all_and_each_names_the_others(
    members: list[Member], tmp_path: Path
) -> None:
    def all_reached() -> sources.Pulled | None:
        pulled = pull(members[0], tmp_path)
        return pulled if len(pulled.reached) == 3 else None

    # Members have asked each other once telemetry has begun.
    pulled = eventually(all_reached, "all members are found by one")
    assert pulled.absent == {}
    told = [row for row in rows(tmp_path) if row["k"] == "node"]
    names = {row["node"] for row in rows(tmp_path) if row["k"] == "_open"}
    assert len(names) == 3
    assert any(len(row["peers"]) == 2 and set(row["peers"]) < names for row in told)
    assert not any("skew_ms" in row for row in told)


def test_what_goes_with_queues_is_told_however_short_they_lived(
    members: list[Member], tmp_path: Path
) -> None:
    """Deleted, expired, and exclusive; one in which a consumer holds some."""
    with members[1].connect() as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("deleted", durable=True, arguments={"x-queue-type": "quorum"})
        channel.queue_declare("expired", durable=True, arguments={"x-expires": 8000})
        channel.queue_declare("exclusive", exclusive=True)
        for name, count in (("deleted", 12), ("expired", 44), ("exclusive", 55)):
            for _ in range(count):
                channel.basic_publish("", name, b"x")
        channel.basic_get("deleted")
        channel.queue_delete("deleted")

    def last() -> dict[str, Any] | None:
        pull(members[1], tmp_path)
        found = {
            row["queue"]: row
            for row in rows(tmp_path)
            if row["k"] == "queue" and ("deleted" in row or "expired_queue" in row)
        }
        return found if len(found) == 3 else None

    found = eventually(last, "the last rows of three queues")
    assert (found["deleted"]["deleted"], found["deleted"]["c_orphaned"]) == (12, 1)
    assert found["expired"]["expired_queue"] == 44
    assert found["exclusive"]["deleted"] == 55
    for row in found.values():
        assert (row["ready"], row["unacked"]) == (0, 0)
        assert row["c_enq"] == row.get("c_purged", 0) + row.get("c_orphaned", 0)


def test_a_member_whose_telemetry_is_off_is_known_to_be_so(tmp_path: Path) -> None:
    off = {"BROKERD_TELEMETRY_ENABLED": "false"}
    with cluster(tmp_path, 3, own_env=[{}, {}, off]) as members:
        raw = tmp_path / "raw"

        def named() -> set[str] | None:
            pulled = pull(members[0], raw)
            assert pulled.clocks == {}
            found = {name for row in rows(raw) for name in row.get("peers_off") or ()}
            return found if len(pulled.reached) == 3 else None

        assert eventually(named, "all members are found by one") == {"n2"}
        assert {row["node"] for row in rows(raw) if row["k"] == "_open"} == {"n0", "n1"}
        by_it = pull(members[2], tmp_path / "by it")
        assert len(by_it.reached) == 3
        assert by_it.absent == {}


def test_a_member_that_does_not_answer_is_absent_by_name(
    members: list[Member], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands still, as far as anybody can tell."""
    monkeypatch.setattr(sources, "SEAL_TIMEOUT_S", 3.0)
    process = members[2].process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    try:
        pulled = pull(members[0], tmp_path)
    finally:
        process.send_signal(signal.SIGCONT)
    assert len(pulled.absent) == 1
    assert len(pulled.reached) == 2
