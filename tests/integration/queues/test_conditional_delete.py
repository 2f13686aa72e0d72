"""queue.delete with if-unused and if-empty: the quorum queue judges and ends in one step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pika
import pytest

from tests.integration.members import cluster


def delete(connection: Any, **flags: bool) -> int:
    """Return the reply code of a refusal, 0 for none."""
    channel = connection.channel()
    try:
        channel.queue_delete("q", **flags)
    except pika.exceptions.ChannelClosedByBroker as refused:
        return int(refused.reply_code)
    channel.close()
    return 0


@pytest.mark.parametrize("queue_type", ["quorum", "classic"])
def test_the_queue_judges_its_own_deletion(tmp_path: Path, queue_type: str) -> None:
    with cluster(tmp_path, 1) as [member], member.connect() as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("q", durable=True, arguments={"x-queue-type": queue_type})
        channel.basic_publish("", "q", b"kept")
        assert delete(connection, if_empty=True) == 406
        tag = channel.basic_consume("q", lambda *_: None)
        assert delete(connection, if_unused=True) == 406
        channel.basic_cancel(tag)
        assert channel.queue_declare("q", passive=True).method.consumer_count == 0
        assert delete(connection, if_unused=True) == 0


def test_profiles_of_rabbitmq_refuse_it(tmp_path: Path) -> None:
    """R-ERR-35"""
    with cluster(tmp_path, 1, BROKERD_COMPAT_PROFILE="rabbitmq-4.3") as [member]:
        for flag in ("if_empty", "if_unused"):
            connection = member.connect()
            channel = connection.channel()
            channel.queue_declare("q", durable=True, arguments={"x-queue-type": "quorum"})
            with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as refused:
                channel.queue_delete("q", **{flag: True})
            assert refused.value.reply_code == 540
            assert flag.replace("_", "-") in refused.value.reply_text
