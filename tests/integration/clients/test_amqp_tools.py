"""Debian's amqp-tools (rabbitmq-c): declare, publish, get, consume, delete from a shell."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.integration.members import Member

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def run(member: Member) -> object:
    """Give the act of running one of the tools against the member."""
    if shutil.which("amqp-publish") is None:
        pytest.skip("amqp-tools are missing: apt-get install amqp-tools")

    def act(tool: str, *args: str, given: bytes = b"", status: int = 0) -> bytes:
        done = subprocess.run(
            [f"amqp-{tool}", "--url", f"amqp://guest:guest@127.0.0.1:{member.amqp_port}", *args],
            input=given,
            capture_output=True,
            timeout=120,
        )
        assert done.returncode == status, (tool, done)
        return done.stdout

    return act


def test_the_tools_declare_publish_get_consume_and_delete(run: object) -> None:
    """Each call is a connection of its own; a message of 1 MiB comes back as it was."""
    assert callable(run)
    assert run("declare-queue", "--durable", "--queue", "tools").strip() == b"tools"
    body = bytes(range(256)) * 4096
    run("publish", "--routing-key", "tools", "--persistent", given=body)
    assert run("get", "--queue", "tools") == body
    # 2 stands for an empty queue.
    run("get", "--queue", "tools", status=2)
    run("publish", "--routing-key", "tools", "--body", "to be consumed")
    assert run("consume", "--queue", "tools", "--count", "1", "cat") == b"to be consumed"
    run("publish", "--routing-key", "tools", "--body", "left")
    assert run("delete-queue", "--queue", "tools").strip() == b"1"


def test_the_tools_consume_from_an_exchange(run: object) -> None:
    """A queue that is missing is an error of the tool, not a hang (R-ERR 404)."""
    assert callable(run)
    run("get", "--queue", "tools.missing", status=1)
    run("publish", "--exchange", "amq.topic", "--routing-key", "a.b", "--body", "nobody listens")
