"""Methods on channel 0, both roles: which is legal in which phase, and what it does.

A table `(phase, method) -> handler`; a pair that is not in it is the peer's fault (504).  The
handlers change the connection through its room-internal methods, which no other code calls.
"""

from __future__ import annotations

from collections.abc import Callable

from brokerd.amqp import events, methods, spec
from brokerd.amqp.config import Role
from brokerd.amqp.endpoint import Endpoint
from brokerd.amqp.errors import ChannelFault, CommandInvalid, NotAllowed
from brokerd.amqp.methods import Method
from brokerd.amqp.phases import Phase
from brokerd.amqp.sasl import encode_plain
from brokerd.amqp.values import Table

Handler = Callable[[Endpoint, Method], "events.Event | None"]

_STATES = {Phase.OPEN: "running", Phase.AWAIT_OPEN: "opening", Phase.AWAIT_TUNE_OK: "tuning"}


def _state(phase: Phase) -> str:
    """A phase as RabbitMQ's error text names it."""
    return _STATES.get(phase, phase.value)


def take_method(connection: Endpoint, method: Method) -> events.Event | None:
    """A decoded method on channel 0."""
    handler = _TRANSITIONS[connection.role].get((connection.phase, type(method)))
    if handler is None:
        # R-FRM-4.
        raise ChannelFault(
            f"unexpected method in connection state {_state(connection.phase)}",
            class_id=method.CLASS_ID,
            method_id=method.METHOD_ID,
        )
    return handler(connection, method)


def start_method(connection: Endpoint) -> methods.ConnectionStart:
    """connection.start with our properties and capabilities (R-CON-3)."""
    config = connection.config
    properties: Table = dict(config.server_properties)
    properties.setdefault("capabilities", dict.fromkeys(spec.SERVER_CAPABILITIES, True))
    return methods.ConnectionStart(
        0, 9, properties, config.mechanisms.encode(), config.locales.encode()
    )


def _start_ok(connection: Endpoint, method: Method) -> events.Event | None:
    assert isinstance(method, methods.ConnectionStartOk)
    if method.mechanism not in connection.config.mechanisms.split():
        # R-CON-6; before authentication any error ends in the silent close.
        raise CommandInvalid(f"unknown authentication mechanism {method.mechanism!r}")
    connection.client_properties = method.client_properties
    connection.mechanism = method.mechanism
    connection.phase = Phase.AUTHENTICATING
    return events.AuthenticationRequested(
        method.mechanism, method.response, method.client_properties, method.locale
    )


def _secure_ok(connection: Endpoint, method: Method) -> events.Event | None:
    assert isinstance(method, methods.ConnectionSecureOk)
    connection.phase = Phase.AUTHENTICATING
    return events.AuthenticationRequested(
        connection.mechanism, method.response, connection.client_properties, ""
    )


def _tune_ok(connection: Endpoint, method: Method) -> events.Event | None:
    assert isinstance(method, methods.ConnectionTuneOk)
    config = connection.config
    _check_tuned("frame_max", method.frame_max, config.frame_min, config.frame_max)
    _check_tuned("channel_max", method.channel_max, 1, config.channel_max)
    connection.tuned(method.frame_max, method.channel_max, method.heartbeat)
    connection.phase = Phase.AWAIT_OPEN
    return None


def _check_tuned(name: str, value: int, minimum: int, maximum: int) -> None:
    """R-CON-9, own decision: the 530 that RabbitMQ intends."""
    detail = " (no limit)" if name == "channel_max" and value == 0 else ""
    if value and value < minimum:
        wrong, limit = "lower than the minimum", minimum
    elif maximum and (value == 0 or value > maximum):
        wrong, limit = "higher than the maximum", maximum
    else:
        return
    raise NotAllowed(
        f"negotiated {name} = {value}{detail} is {wrong} allowed value ({limit})",
        class_id=methods.ConnectionTuneOk.CLASS_ID,
        method_id=methods.ConnectionTuneOk.METHOD_ID,
    )


def _open(connection: Endpoint, method: Method) -> events.Event | None:
    assert isinstance(method, methods.ConnectionOpen)
    connection.phase = Phase.OPENING
    return events.OpenRequested(method.virtual_host)


def _update_secret(connection: Endpoint, method: Method) -> events.Event | None:
    assert isinstance(method, methods.ConnectionUpdateSecret)
    return events.SecretUpdated(method.new_secret, method.reason)


def _update_secret_ok(connection: Endpoint, method: Method) -> events.Event | None:
    return events.MethodReceived(0, method)


def _close(connection: Endpoint, method: Method) -> events.Event | None:
    assert isinstance(method, methods.ConnectionClose)
    connection.peer_closes()
    return events.ConnectionClosed(
        True, method.reply_code, method.reply_text, method.class_id, method.method_id
    )


def _start(connection: Endpoint, method: Method) -> events.Event | None:
    assert isinstance(method, methods.ConnectionStart)
    config = connection.config
    if b"PLAIN" not in method.mechanisms.split():
        raise CommandInvalid("server does not offer PLAIN", class_id=10, method_id=10)
    connection.server_properties = method.server_properties
    properties: Table = dict(config.client_properties)
    properties.setdefault("capabilities", dict.fromkeys(spec.CLIENT_CAPABILITIES, True))
    connection.client_properties = properties
    credentials = config.credentials
    response = encode_plain(credentials.user, credentials.password) if credentials else b"\0\0"
    connection.queue(
        methods.ConnectionStartOk(properties, "PLAIN", response, config.locales.split()[0])
    )
    connection.phase = Phase.AWAIT_TUNE
    return None


def _tune(connection: Endpoint, method: Method) -> events.Event | None:
    assert isinstance(method, methods.ConnectionTune)
    config = connection.config
    frame_max = _smaller_limit(config.frame_max, method.frame_max)
    if frame_max and frame_max < spec.FRAME_MIN_SIZE // 2:
        # SEC-39: below 4096 a peer makes us cut bodies into dust.
        raise NotAllowed(f"frame_max {frame_max} is too small", class_id=10, method_id=30)
    channel_max = _smaller_limit(config.channel_max, method.channel_max)
    heartbeat_s = _smaller_limit(config.heartbeat_s, method.heartbeat)
    connection.queue(methods.ConnectionTuneOk(channel_max, frame_max, heartbeat_s))
    connection.tuned(frame_max, channel_max, heartbeat_s)
    connection.queue(methods.ConnectionOpen(config.vhost))
    connection.phase = Phase.AWAIT_OPEN_OK
    return None


def _smaller_limit(ours: int, theirs: int) -> int:
    """The stricter of two limits of which 0 is none."""
    return min(ours, theirs) if ours and theirs else ours or theirs


def _open_ok(connection: Endpoint, method: Method) -> events.Event | None:
    connection.opened()
    return events.ConnectionOpened(connection.server_properties)


def _blocked(connection: Endpoint, method: Method) -> events.Event | None:
    assert isinstance(method, methods.ConnectionBlocked)
    return events.Blocked(method.reason)


def _unblocked(connection: Endpoint, method: Method) -> events.Event | None:
    return events.Unblocked()


_SERVER: dict[tuple[Phase, type[Method]], Handler] = {
    (Phase.AWAIT_START_OK, methods.ConnectionStartOk): _start_ok,
    (Phase.AWAIT_SECURE_OK, methods.ConnectionSecureOk): _secure_ok,
    (Phase.AWAIT_TUNE_OK, methods.ConnectionTuneOk): _tune_ok,
    (Phase.AWAIT_OPEN, methods.ConnectionOpen): _open,
    (Phase.AWAIT_TUNE_OK, methods.ConnectionClose): _close,
    (Phase.AWAIT_OPEN, methods.ConnectionClose): _close,
    (Phase.OPEN, methods.ConnectionClose): _close,
    (Phase.OPEN, methods.ConnectionUpdateSecret): _update_secret,
}
_CLIENT: dict[tuple[Phase, type[Method]], Handler] = {
    (Phase.AWAIT_START, methods.ConnectionStart): _start,
    (Phase.AWAIT_TUNE, methods.ConnectionTune): _tune,
    (Phase.AWAIT_OPEN_OK, methods.ConnectionOpenOk): _open_ok,
    (Phase.AWAIT_TUNE, methods.ConnectionClose): _close,
    (Phase.AWAIT_OPEN_OK, methods.ConnectionClose): _close,
    (Phase.OPEN, methods.ConnectionClose): _close,
    (Phase.OPEN, methods.ConnectionBlocked): _blocked,
    (Phase.OPEN, methods.ConnectionUnblocked): _unblocked,
    (Phase.OPEN, methods.ConnectionUpdateSecretOk): _update_secret_ok,
}
_TRANSITIONS = {Role.SERVER: _SERVER, Role.CLIENT: _CLIENT}
