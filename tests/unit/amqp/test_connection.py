"""The connection machine in states that no ordinary conversation reaches."""

from __future__ import annotations

import pytest

from brokerd.amqp import channel, content, errors, events, frames, methods, spec
from brokerd.amqp.config import ConnectionConfig, Credentials, Role
from brokerd.amqp.connection import AmqpConnection
from tests.unit.amqp.pair import (
    ConnectionPair,
    body_frame,
    frame,
    header_frame,
    opened_server,
    publish_bytes,
    sent,
    server,
)


def closed_by(machine: AmqpConnection) -> methods.ConnectionClose:
    (found,) = [
        method for _, method in sent(machine) if isinstance(method, methods.ConnectionClose)
    ]
    return found


def client_before_start() -> AmqpConnection:
    config = ConnectionConfig(credentials=Credentials("u", "p"))
    machine = AmqpConnection(Role.CLIENT, config, 0)
    machine.data_to_send()
    return machine


def test_credentials_are_not_shown() -> None:
    """SEC-20."""
    assert repr(Credentials("u", "secret")) == "Credentials(user='u', password=***)"


def test_a_verdict_that_comes_too_late_changes_nothing() -> None:
    """R-CON-4: the handshake's time was over before the password was checked."""
    machine = server()
    machine.receive_eof(0)
    machine.authentication_failed()
    assert machine.authentication_succeeded() == []
    assert machine.data_to_send() == b""


@pytest.mark.parametrize("kind", [2, 3])
def test_content_without_a_method_is_no_publish_to_be_held(kind: int) -> None:
    """R-FRM-6, R-ALM-2: 505, during an alarm too."""
    machine = opened_server(channels=(1,))
    machine.hold_publishes = True
    data = header_frame(1, 0) if kind == 2 else body_frame(1, b"x")
    (event,) = machine.receive_data(data, 0)
    assert isinstance(event, events.ConnectionFailed)
    assert event.code == spec.UNEXPECTED_FRAME


def test_an_ack_that_is_cut_short_is_refused_and_those_before_it_count() -> None:
    """R-FRM-5, R-ACK-11."""
    machine = opened_server(channels=(1,))
    short = frame(1, 1, methods.BasicAck(2).encode(1)[7:-2])
    found = machine.receive_data(methods.BasicAck(1).encode(1) + short, 0)
    assert found[0] == events.AcksReceived(1, [(1, False)])
    assert isinstance(found[1], events.ConnectionFailed)
    assert (found[1].code, found[1].class_id, found[1].method_id) == (501, 60, 80)


def test_acks_of_two_channels_are_two_events() -> None:
    machine = opened_server(channels=(1, 2))
    data = b"".join(methods.BasicAck(7).encode(number) for number in (1, 1, 2))
    assert machine.receive_data(data, 0) == [
        events.AcksReceived(1, [(7, False), (7, False)]),
        events.AcksReceived(2, [(7, False)]),
    ]


def test_while_closing_other_methods_of_the_connection_do_not_count() -> None:
    """R-CON-14."""
    machine = opened_server()
    machine.close(320, "bye")
    machine.data_to_send()
    assert machine.receive_data(methods.ConnectionUpdateSecret(b"x", "y").encode(0), 0) == []
    assert machine.is_closing
    # An error found meanwhile is no second close.
    assert machine.fail(errors.FrameError("late")) == []
    assert machine.data_to_send() == b""


def test_what_may_not_be_sent_any_more_is_dropped() -> None:
    machine = opened_server(channels=(1,))
    # close-ok without a close to answer
    machine.send(0, methods.ConnectionCloseOk())
    machine.close_channel(1, 404, "gone")
    machine.data_to_send()
    machine.send_content(1, methods.BasicReturn(312, "NO_ROUTE", "", "k"), b"\0\0", b"x")
    assert machine.data_to_send() == b""
    machine.send(0, methods.ConnectionClose(320, "bye", 0, 0))
    assert closed_by(machine).reply_code == 320
    machine.send(0, methods.ConnectionBlocked("late"))
    assert machine.data_to_send() == b""


def test_a_client_opens_a_channel_once() -> None:
    pair = ConnectionPair()
    pair.exchange()
    pair.client.open_channel(1)
    with pytest.raises(errors.MisuseError, match="in use"):
        pair.client.open_channel(1)


@pytest.mark.parametrize("method", [methods.BasicPublish(0, "x", "k"), methods.BasicQosOk()])
def test_a_client_takes_neither_publishes_nor_answers_before_open_ok(
    method: methods.Method,
) -> None:
    """R-FRM-5, R-CH-1."""
    pair = ConnectionPair()
    pair.exchange()
    pair.client.open_channel(1)
    if isinstance(method, methods.BasicPublish):
        pair.client.receive_data(methods.ChannelOpenOk().encode(1), 0)
    (event,) = pair.client.receive_data(method.encode(1), 0)
    assert isinstance(event, events.ConnectionFailed)
    expected = 503 if isinstance(method, methods.BasicPublish) else 504
    assert event.code == expected


def test_a_client_needs_plain() -> None:
    """SEC-6: it has nothing else to offer."""
    machine = client_before_start()
    start = methods.ConnectionStart(0, 9, {}, b"EXTERNAL", b"en_US")
    (event,) = machine.receive_data(start.encode(0), 0)
    assert isinstance(event, events.ConnectionFailed)
    assert "PLAIN" in event.reason


def test_a_frame_head_within_the_limits_is_accepted() -> None:
    """R-FRM-2: with the slack, and without a limit."""
    frames.check_size(3, 4096, 4096)
    frames.check_size(3, 1 << 20, 0)
    with pytest.raises(errors.FrameError, match="frame_too_large,4097,4088"):
        frames.check_size(3, 4097, 4096)


@pytest.mark.plain
def test_the_cache_of_publishes_starts_anew_when_it_is_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SEC-44: hostile routing keys cost time, not memory."""
    monkeypatch.setattr(spec, "PUBLISH_CACHE_ENTRIES_MAX", 2)
    cache: dict[bytes, methods.BasicPublish] = {}
    monkeypatch.setattr(content, "_publishes", cache)
    machine = opened_server(channels=(1,))
    for key in "abc":
        machine.receive_data(methods.BasicPublish(0, "x", key).encode(1) + header_frame(1, 0), 0)
    assert [method.routing_key for method in cache.values()] == ["c"]
    assert machine.receive_data(publish_bytes(1, b"still", "d"), 0)


def test_a_get_that_comes_again_is_what_it_was() -> None:
    """R-CS-8: the second is known by its bytes, on another connection too; a queue's name that was
    never seen is not."""
    get = methods.BasicGet(0, "again-and-again", True)
    for _ in range(2):
        machine = opened_server(channels=(1, 2))
        for queue in (get, methods.BasicGet(0, "other", True), get):
            for number in (1, 2):
                found = machine.receive_data(queue.encode(number), 0)
                assert found == [events.MethodReceived(number, queue)]


def test_a_get_that_is_known_comes_in_pieces_and_in_runs() -> None:
    """R-FRM-1: cut anywhere, and several in one read."""
    one = methods.BasicGet(0, "known", False)
    data = one.encode(1)
    machine = opened_server(channels=(1,))
    machine.receive_data(data, 0)
    for cut in range(1, len(data)):
        assert machine.receive_data(data[:cut], 0) == []
        assert machine.receive_data(data[cut:], 0) == [events.MethodReceived(1, one)]
    assert machine.receive_data(data * 3, 0) == [events.MethodReceived(1, one)] * 3


@pytest.mark.parametrize("cut", [-2, -3])
def test_a_get_that_is_known_and_not_whole_is_refused(cut: int) -> None:
    """R-FRM-3, R-FRM-5: a wrong end octet, a payload that is too short."""
    payload = methods.BasicGet(0, "known", False).encode(1)[7:-1]
    machine = opened_server(channels=(1,))
    machine.receive_data(frame(1, 1, payload), 0)
    broken = frame(1, 1, payload, end=0) if cut == -2 else frame(1, 1, payload[:cut])
    (event,) = machine.receive_data(broken, 0)
    assert isinstance(event, events.ConnectionFailed)


def test_gets_of_many_queues_take_no_more_memory_than_some() -> None:
    machine = opened_server(channels=(1,))
    for number in range(channel.KNOWN_GETS_MAX + 10):
        machine.receive_data(methods.BasicGet(0, f"many-{number}").encode(1), 0)
    assert len(channel.known_gets) <= channel.KNOWN_GETS_MAX


def test_a_server_that_asks_for_a_message_is_refused() -> None:
    """R-FRM-5: the bytes are known from a machine of the other role."""
    get = methods.BasicGet(0, "known", False)
    opened_server(channels=(1,)).receive_data(get.encode(1), 0)
    pair = ConnectionPair()
    pair.exchange()
    pair.client.open_channel(1)
    pair.exchange()
    (event,) = pair.client.receive_data(get.encode(1), 0)
    assert isinstance(event, events.ConnectionFailed)
