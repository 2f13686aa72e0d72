"""Server handshake: headers, login, tuning, opening, and the silence for unknown peers."""

from __future__ import annotations

import pytest

from brokerd.amqp import events, methods
from brokerd.amqp.config import ConnectionConfig, Credentials, Role
from brokerd.amqp.connection import AmqpConnection
from brokerd.amqp.errors import MisuseError
from tests.unit.amqp.pair import (
    HEADER,
    authenticated_server,
    frame,
    opened_server,
    sent,
    server,
    start_ok,
    tune_ok,
)


@pytest.mark.parametrize("header", [HEADER, b"AMQP\x01\x01\x00\x09"])
def test_known_protocol_headers_are_answered_with_start(header: bytes) -> None:
    """R-CON-1, R-CON-3."""
    machine = server(server_properties={"product": "brokerd"})
    assert machine.receive_data(header, 0) == []
    ((channel, start),) = sent(machine)
    assert channel == 0
    assert isinstance(start, methods.ConnectionStart)
    assert (start.version_major, start.version_minor) == (0, 9)
    assert sorted(start.mechanisms.split()) == [b"AMQPLAIN", b"PLAIN"]
    assert start.locales == b"en_US"
    assert start.server_properties["product"] == "brokerd"
    assert start.server_properties["capabilities"]


@pytest.mark.parametrize(
    "header",
    [b"AMQP\x01\x01\x08\x00", b"AMQP\x03\x01\x00\x00", b"GET / HT", b"AMQP\x00\x00\x09\x02"],
)
def test_other_headers_get_ours_and_the_end(header: bytes) -> None:
    """R-CON-2: our header, then the socket closes; later bytes do nothing."""
    machine = server()
    (event,) = machine.receive_data(header + b"more", 0)
    assert isinstance(event, events.ConnectionFailed)
    assert machine.data_to_send() == HEADER
    assert machine.wants_close
    assert machine.receive_data(HEADER, 1) == []
    assert machine.data_to_send() == b""


def test_handshake_has_a_deadline() -> None:
    """R-CON-4, SEC-32: no method, just the end; the deadline is off once open."""
    machine = server()
    machine.receive_data(HEADER + start_ok(), 0)
    machine.data_to_send()
    assert machine.next_deadline_ms == 10_000
    assert machine.tick(9_999) == []
    (event,) = machine.tick(10_000)
    assert isinstance(event, events.ConnectionFailed)
    assert event.code == 0
    assert machine.wants_close
    assert machine.data_to_send() == b""
    assert machine.authentication_succeeded() == []
    assert opened_server().next_deadline_ms is None


UNAUTHENTICATED_MISTAKES = [
    methods.ConnectionOpen("/").encode(0),
    methods.ConnectionTuneOk().encode(0),
    methods.ChannelOpen().encode(1),
    start_ok("SCRAM-SHA-256"),
    frame(7, 0, b""),
    frame(2, 0, b"x"),
    frame(1, 0, b"\x00\x63\x00\x63"),
    frame(1, 0, start_ok()[7:-1], end=0xCD),
    frame(1, 0, start_ok()[7:-2]),
    b"\x01\x00\x00\x00\x00\x20\x01",
]


@pytest.mark.parametrize("mistake", UNAUTHENTICATED_MISTAKES)
def test_unknown_peers_get_silence_for_any_mistake(mistake: bytes) -> None:
    """R-CON-4, R-CON-6, SEC-31, SEC-35, SEC-38: a plain close after the delay, nothing sent."""
    machine = server()
    machine.receive_data(HEADER, 0)
    machine.data_to_send()
    (event,) = machine.receive_data(mistake, 5)
    assert isinstance(event, events.ConnectionFailed)
    assert event.code == 0
    assert machine.data_to_send() == b""
    assert not machine.wants_close
    assert machine.next_deadline_ms == machine.close_at_ms == 3_005
    assert machine.receive_data(start_ok(), 6) == []
    machine.check_invariants()
    assert machine.tick(3_004) == []
    assert not machine.wants_close
    assert machine.tick(3_005) == []
    assert machine.wants_close


def test_login_is_asked_for_and_input_waits() -> None:
    """A client that sends its whole handshake at once is served in order."""
    machine = server()
    pipelined = start_ok(basic=True) + tune_ok(heartbeat=7)
    pipelined += methods.ConnectionOpen("v").encode(0) + methods.ChannelOpen().encode(1)
    (event,) = machine.receive_data(HEADER + pipelined, 0)
    assert isinstance(event, events.AuthenticationRequested)
    assert (event.mechanism, event.response) == ("PLAIN", b"\0guest\0guest")
    assert event.client_properties == {"capabilities": {"basic": True}}
    assert "guest" not in repr(event)
    assert machine.receive_data(b"", 0) == []
    assert machine.authentication_succeeded() == [events.OpenRequested("v")]
    assert machine.heartbeat_s == 7
    assert machine.open_accepted() == [events.ChannelOpened(1)]
    names = [method.NAME for _, method in sent(machine)]
    assert names == ["connection.start", "connection.tune", "connection.open-ok"]


def test_unread_bytes_before_the_login_are_bounded() -> None:
    """SEC-31: a peer that floods while we think is cut off."""
    machine = server()
    machine.receive_data(HEADER + start_ok(), 0)
    machine.data_to_send()
    assert machine.receive_data(bytes(15_000), 0) == []
    (event,) = machine.receive_data(bytes(10_000), 0)
    assert isinstance(event, events.ConnectionFailed)
    machine.check_invariants()
    assert machine.authentication_succeeded() == []
    assert machine.data_to_send() == b""


def test_challenge_asks_again() -> None:
    machine = server()
    machine.receive_data(HEADER + start_ok(), 0)
    machine.authentication_challenge(b"more?")
    assert sent(machine)[-1] == (0, methods.ConnectionSecure(b"more?"))
    (event,) = machine.receive_data(methods.ConnectionSecureOk(b"more").encode(0), 0)
    assert isinstance(event, events.AuthenticationRequested)
    assert (event.mechanism, event.response) == ("PLAIN", b"more")


def test_refused_login_is_explained_to_clients_that_understand() -> None:
    """R-CON-5, R-ERR-22: 403 (0,0), and the socket stays for the delay whatever the client does."""
    machine = server()
    machine.receive_data(HEADER + start_ok(authentication_failure_close=True), 100)
    machine.data_to_send()
    machine.authentication_failed()
    ((_, close),) = sent(machine)
    assert close == methods.ConnectionClose(
        403,
        "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. "
        "For details see the broker logfile.",
        0,
        0,
    )
    machine.receive_data(methods.ConnectionCloseOk().encode(0), 200)
    assert not machine.wants_close
    machine.tick(3_100)
    assert machine.wants_close


def test_refused_login_is_silent_for_others() -> None:
    """R-CON-5, SEC-9."""
    machine = server()
    machine.receive_data(HEADER + start_ok(authentication_failure_close=False), 100)
    machine.data_to_send()
    machine.authentication_failed()
    assert machine.data_to_send() == b""
    assert machine.close_at_ms == 3_100


def test_unreadable_login_is_silent_for_all() -> None:
    """R-CON-6: broken syntax before the login is no refused login."""
    machine = server()
    machine.receive_data(HEADER + start_ok(authentication_failure_close=True), 100)
    machine.data_to_send()
    machine.authentication_failed(is_readable=False)
    assert machine.data_to_send() == b""
    assert machine.close_at_ms == 3_100


def test_tune_proposes_the_configured_values() -> None:
    """R-CON-8."""
    machine = server()
    machine.receive_data(HEADER + start_ok(), 0)
    machine.data_to_send()
    machine.authentication_succeeded()
    assert sent(machine) == [(0, methods.ConnectionTune(2047, 131072, 60))]


@pytest.mark.parametrize(
    ("values", "explanation"),
    [
        ({"frame_max": 0}, "frame_max = 0 is higher than the maximum allowed value (131072)"),
        (
            {"frame_max": 131073},
            "frame_max = 131073 is higher than the maximum allowed value (131072)",
        ),
        ({"frame_max": 8191}, "frame_max = 8191 is lower than the minimum allowed value (8192)"),
        ({"frame_max": 4095}, "frame_max = 4095 is lower than the minimum allowed value (8192)"),
        (
            {"channel_max": 0},
            "channel_max = 0 (no limit) is higher than the maximum allowed value (2047)",
        ),
        (
            {"channel_max": 2048},
            "channel_max = 2048 is higher than the maximum allowed value (2047)",
        ),
    ],
)
def test_wrong_tune_ok_is_refused_at_once(values: dict[str, int], explanation: str) -> None:
    """R-CON-9, R-ERR-23, SEC-39, SEC-59."""
    machine = authenticated_server()
    (event,) = machine.receive_data(tune_ok(**values), 0)
    assert isinstance(event, events.ConnectionFailed)
    assert event.code == 530
    ((_, close),) = sent(machine)
    assert close == methods.ConnectionClose(530, f"NOT_ALLOWED - negotiated {explanation}", 10, 31)


def test_no_limits_are_possible_when_the_server_has_none() -> None:
    """R-CON-8, R-FRM-10: 0 is no limit."""
    machine = authenticated_server(frame_max=0, channel_max=0)
    assert machine.receive_data(tune_ok(channel_max=0, frame_max=0), 0) == []
    assert (machine.frame_max, machine.channel_max) == (0, 0)


def test_frames_are_small_until_tune_ok() -> None:
    """R-CON-8, SEC-31: 8192 and the slack; more afterwards."""
    for before, is_accepted in ((True, False), (False, True)):
        machine = authenticated_server()
        if not before:
            machine.receive_data(tune_ok(), 0)
        found = machine.receive_data(b"\x01\x00\x00" + (8193).to_bytes(4, "big"), 0)
        assert (found == []) is is_accepted


def test_frame_at_the_initial_limit_passes() -> None:
    """R-FRM-2 before tune-ok: payload 8192 is the largest."""
    machine = authenticated_server()
    assert machine.receive_data(b"\x01\x00\x00" + (8192).to_bytes(4, "big"), 0) == []


def test_open_is_asked_for_and_refused() -> None:
    """R-CON-11, R-ERR-20."""
    machine = authenticated_server()
    machine.receive_data(tune_ok(), 0)
    assert machine.receive_data(methods.ConnectionOpen("nosuch").encode(0), 0) == [
        events.OpenRequested("nosuch")
    ]
    machine.close(530, "vhost nosuch not found", 10, 40)
    assert sent(machine) == [
        (0, methods.ConnectionClose(530, "NOT_ALLOWED - vhost nosuch not found", 10, 40))
    ]
    assert machine.open_accepted() == []
    # The handshake's deadline is off; the close has its own.
    assert machine.next_deadline_ms == 30_000


@pytest.mark.parametrize(
    "method",
    [
        methods.ConnectionOpen("/"),
        methods.ConnectionStartOk(),
        methods.ConnectionTuneOk(),
        methods.ConnectionBlocked("x"),
        methods.ConnectionOpenOk(),
        methods.ChannelOpen(),
        methods.BasicAck(1),
    ],
    ids=lambda method: method.NAME,
)
def test_channel_0_methods_in_the_wrong_state(method: methods.Method) -> None:
    """R-FRM-4: 504 with the method's ids."""
    machine = opened_server()
    (event,) = machine.receive_data(method.encode(0), 0)
    assert isinstance(event, events.ConnectionFailed)
    ((_, close),) = sent(machine)
    assert isinstance(close, methods.ConnectionClose)
    assert (close.reply_code, close.class_id, close.method_id) == (
        504,
        method.CLASS_ID,
        method.METHOD_ID,
    )
    assert close.reply_text.startswith("CHANNEL_ERROR - unexpected method in connection state ")


def test_channels_before_open_are_refused() -> None:
    """SEC-35."""
    machine = authenticated_server()
    machine.receive_data(tune_ok(), 0)
    (event,) = machine.receive_data(methods.ChannelOpen().encode(1), 0)
    assert isinstance(event, events.ConnectionFailed)
    assert event.code == 505


def test_answer_to_our_close_ends_the_connection() -> None:
    """R-CON-14: everything but close and close-ok is ignored."""
    machine = opened_server(channels=(1,), heartbeat=10)
    machine.close(320, "broker forced connection closure with reason 'shutdown'")
    assert sent(machine)[0][1] == methods.ConnectionClose(
        320, "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'"
    )
    ignored = methods.BasicPublish().encode(1) + methods.QueueDeclare().encode(9)
    assert machine.receive_data(ignored + methods.ConnectionClose(200, "x").encode(0), 0) == []
    assert sent(machine) == [(0, methods.ConnectionCloseOk())]
    machine.send(1, methods.BasicAck(1))
    machine.send_raw(b"late")
    machine.close(320, "again")
    assert machine.data_to_send() == b""
    (event,) = machine.receive_data(methods.ConnectionCloseOk().encode(0), 0)
    assert isinstance(event, events.ConnectionClosed)
    assert (event.by_peer, event.code) == (False, 320)
    assert machine.wants_close
    assert machine.is_settled


@pytest.mark.parametrize(("heartbeat", "delay"), [(10, 10_000), (60, 30_000), (0, 30_000)])
def test_close_that_is_never_answered_ends_by_time(heartbeat: int, delay: int) -> None:
    """R-CON-14: min(heartbeat, 30) s; 30 s when heartbeats are off (O-22)."""
    machine = opened_server(heartbeat=heartbeat)
    machine.tick(1_000)
    machine.close(320, "x")
    assert machine.next_deadline_ms == 1_000 + delay
    assert machine.tick(999 + delay) == []
    (event,) = machine.tick(1_000 + delay)
    assert isinstance(event, events.ConnectionClosed)
    assert machine.wants_close
    assert not machine.is_settled


def test_close_of_the_client_is_answered_after_what_came_before() -> None:
    """The driver sends close-ok; answers to earlier requests still go out before it."""
    machine = opened_server(channels=(1,))
    found = machine.receive_data(
        methods.QueueDeclare(queue="q").encode(1) + methods.ConnectionClose(200, "bye").encode(0), 0
    )
    assert [type(e) for e in found] == [events.MethodReceived, events.ConnectionClosed]
    machine.send(1, methods.QueueDeclareOk("q"))
    machine.send(0, methods.ConnectionCloseOk())
    names = [method.NAME for _, method in sent(machine)]
    assert names == ["queue.declare-ok", "connection.close-ok"]
    assert machine.wants_close
    assert machine.is_settled


def test_end_of_the_socket_is_told_once() -> None:
    machine = opened_server()
    (event,) = machine.receive_eof(0)
    assert isinstance(event, events.ConnectionFailed)
    assert machine.wants_close
    assert machine.receive_eof(0) == []
    closing = opened_server()
    closing.close(320, "x")
    (event,) = closing.receive_eof(0)
    assert isinstance(event, events.ConnectionClosed)


def test_reply_texts_are_cut_to_255_bytes() -> None:
    """R-CON-15."""
    machine = opened_server()
    machine.close(541, "ü" * 300)
    ((_, close),) = sent(machine)
    assert isinstance(close, methods.ConnectionClose)
    assert close.reply_text.startswith("INTERNAL_ERROR - üü")
    assert close.reply_text.endswith("ü...")
    assert 254 <= len(close.reply_text.encode()) <= 255


def test_decisions_that_were_not_asked_for_are_our_own_fault() -> None:
    with pytest.raises(MisuseError):
        server().authentication_succeeded()
    with pytest.raises(MisuseError):
        opened_server().open_accepted()


def test_client_refuses_a_server_that_cuts_bodies_into_dust() -> None:
    """SEC-59."""
    config = ConnectionConfig(credentials=Credentials("u", "p"))
    client = AmqpConnection(Role.CLIENT, config, 0)
    assert client.data_to_send() == HEADER
    client.receive_data(methods.ConnectionStart(0, 9, {}, b"PLAIN", b"en_US").encode(0), 0)
    client.data_to_send()
    (event,) = client.receive_data(methods.ConnectionTune(0, 512, 0).encode(0), 0)
    assert isinstance(event, events.ConnectionFailed)
    assert client.wants_close


def test_client_that_meets_another_protocol_gives_up() -> None:
    client = AmqpConnection(Role.CLIENT, ConnectionConfig(), 0)
    client.data_to_send()
    (event,) = client.receive_data(b"AMQP\x03\x01\x00\x00", 0)
    assert isinstance(event, events.ConnectionFailed)
    assert client.wants_close
    assert client.data_to_send() == b""


def test_client_is_told_why_the_login_failed() -> None:
    """R-CON-5, the client's side."""
    config = ConnectionConfig(credentials=Credentials("u", "p"))
    client = AmqpConnection(Role.CLIENT, config, 0)
    client.receive_data(methods.ConnectionStart(0, 9, {}, b"PLAIN", b"en_US").encode(0), 0)
    found = client.receive_data(methods.ConnectionClose(403, "ACCESS_REFUSED - no").encode(0), 0)
    assert found == [events.ConnectionClosed(True, 403, "ACCESS_REFUSED - no")]
