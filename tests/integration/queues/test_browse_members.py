"""Looks at queues of three members, from each of them, while leaders come and go; brokerctl."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from brokerd.rpc.v1 import admin_pb2, admin_pb2_grpc
from tests.integration.management.test_http_api import GUEST
from tests.integration.members import Member, cluster, eventually
from tests.integration.queues.test_browse import answer, browse, declare, payloads, publish

REPOSITORY = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Member]]:
    settings = {"BROKERD_AUTH_SCRYPT_LOG2_N": "10"}
    with cluster(tmp_path_factory.mktemp("browse3"), 3, **settings) as made:
        yield made


def brokerctl(member: Member, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    program = [sys.executable, "-c", "from brokerd.ctl.main import main; main()"]
    address = f"127.0.0.1:{member.grpc_port}"
    own = {name: value for name, value in os.environ.items() if not name.startswith("BROKERD_")}
    return subprocess.run(
        [*program, *arguments],
        capture_output=True,
        timeout=120,
        cwd=REPOSITORY,
        env=own | {"BROKERD_ADDRESS": address},
        check=False,
    )


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_each_member_shows_the_same(three: list[Member], kind: str) -> None:
    with three[0].connect() as connection:
        channel = connection.channel()
        declare(channel, f"same-{kind}", kind)
        publish(channel, f"same-{kind}", *[b"%d" % number for number in range(30)])
        channel.basic_get(f"same-{kind}")
        pages = [browse(member, f"same-{kind}", state="all", count=40) for member in three]
        assert pages[0] == pages[1] == pages[2]
        assert len(pages[0]["messages"]) == 30
        assert [row["state"] for row in pages[0]["messages"]][:2] == ["unacked", "ready"]
        # A token of one member is good at the others.
        token = browse(three[1], f"same-{kind}", count=10)["next_page_token"]
        rest = browse(three[2], f"same-{kind}", count=40, page_token=token)
        assert payloads(rest) == [str(number) for number in range(11, 30)]


def test_brokerctl_shows_messages_as_tables_json_and_bytes(three: list[Member]) -> None:
    with three[0].connect() as connection:
        channel = connection.channel()
        declare(channel, "ctl", "quorum")
        publish(channel, "ctl", b"plain", b"\x1b[31mred\x07\n", b"\xff\x00")
    shown = brokerctl(three[1], "browse", "ctl")
    assert shown.returncode == 0, shown.stderr
    assert b"plain" in shown.stdout
    # Nothing of a message steers a terminal.
    assert b"\x1b" not in shown.stdout
    assert b"\x07" not in shown.stdout
    rows = brokerctl(three[1], "browse", "ctl", "--formatter", "json", "--count", "2")
    found = [json.loads(line) for line in rows.stdout.splitlines()]
    assert [row["payload"] for row in found] == ["plain", "\x1b[31mred\x07\n"]
    assert b"\x1b" not in rows.stdout
    token = rows.stderr.decode().split()[-1]
    raw = brokerctl(three[2], "browse", "ctl", "--formatter", "raw", "--page-token", token)
    assert raw.stdout == b"\xff\x00"
    missing = brokerctl(three[1], "browse", "nothing")
    assert missing.returncode == 65
    assert b"no queue 'nothing' in vhost '/'" in missing.stderr


def test_grpc_sends_page_by_page(three: list[Member]) -> None:
    with three[0].connect() as connection:
        channel = connection.channel()
        declare(channel, "stream", "quorum")
        publish(channel, "stream", *[b"x"] * 620)
    with grpc.insecure_channel(f"127.0.0.1:{three[2].grpc_port}") as line:
        stub: Any = admin_pb2_grpc.AdminStub(line)  # type: ignore[no-untyped-call]
        metadata = (("authorization", GUEST),)

        def call(**fields: Any) -> list[Any]:
            request = admin_pb2.BrowseQueueRequest(vhost="/", name="stream", **fields)
            return list(stub.BrowseQueue(request, metadata=metadata))

        pages = call(count=600)
        assert [len(page.messages) for page in pages] == [500, 100]
        assert dict(pages[-1].counts) == {"ready": 620, "unacked": 0, "delayed": 0}
        [rest] = call(page_token=pages[-1].next_page_token, count=600)
        assert (len(rest.messages), rest.next_page_token) == (20, "")
        with pytest.raises(grpc.RpcError) as error:
            call(page_token="x")
        assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_pages_go_on_where_the_leader_was_killed_between_them(three: list[Member]) -> None:
    with three[2].connect() as connection:
        channel = connection.channel()
        declare(channel, "killed", "quorum")
        publish(channel, "killed", *[b"%d" % number for number in range(40)])
    page = browse(three[0], "killed", count=15)
    three[2].kill()
    try:
        token = page["next_page_token"]

        def rest() -> Any:
            status, body = answer(three[0], "killed", count=40, page_token=token)
            assert status in (200, 503), body
            return body if status == 200 else None

        found = payloads(page) + payloads(eventually(rest, "a page of the new leader"))
        assert found == [str(number) for number in range(40)]
    finally:
        three[2].start()
        three[2].wait_ready()
