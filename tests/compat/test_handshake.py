"""From the protocol header to open-ok, as exact bytes, and the rules of heartbeats (R-CON, R-HB).

Servers keep broken handshakes in silence for three seconds and mute clients for ten, so all
dialogues of a server start at once, with the first test that wants one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from brokerd.amqp import methods as M
from brokerd.amqp.values import encode_table
from tests.compat.handshakes import (
    CLOSE_CAPABILITY,
    LOGIN,
    TUNED,
    Dialogue,
    Heard,
    amqplain,
    plain,
    start_ok,
    tune_ok,
)
from tests.compat.servers import Closed, Differs, Server, expected
from tests.integration.raw_client import HEADER, frame

OPEN = M.ConnectionOpen("/").encode(0)
#: Sent after open: the answer shows that the connection is open and ends the dialogue.
END = M.ConnectionClose(200, "bye", 0, 0).encode(0)
PLAIN_REFUSED = Closed(
    "connection",
    403,
    "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For details see the "
    "broker logfile.",
)
AMQPLAIN_REFUSED = Closed("connection", 403, PLAIN_REFUSED.text.replace("PLAIN", "AMQPLAIN"))
#: What a connection that was opened and closed in order hears last.
OPENED = "ConnectionCloseOk"
#: The last word before a silent end.
START, TUNE = "ConnectionStart", "ConnectionTune"


def fault(code: int, text: str, method: int) -> Closed:
    """Return a connection error of a method of class 10."""
    return Closed("connection", code, text, (10, method) if method else (0, 0))


def no_tune(text: str) -> Differs[Closed | str]:
    """RabbitMQ means to say so and does not (R-CON-9)."""
    return Differs(TUNE, fault(530, f"NOT_ALLOWED - negotiated {text}", 31), "D-13")


def early(closed: Closed) -> Differs[Closed | str]:
    """What comes between login and tune-ok."""
    return Differs(TUNE, closed, "D-14")


STATE = "CHANNEL_ERROR - unexpected method in connection state "
NOT_YET = "UNEXPECTED_FRAME - type 1, all octets = <<0,20,0,10,0>>"
HIGHER = "is higher than the maximum allowed value"

#: Rule and words: what is sent at once, and what is heard last.
DIALOGUES: dict[str, tuple[bytes, Closed | str | Differs[Closed | str]]] = {
    "R-CON-1 header 0-0-9-1": (TUNED + OPEN + END, OPENED),
    "R-CON-1 header 1-1-0-9": (b"AMQP\1\1\0\x09" + TUNED[8:] + OPEN + END, OPENED),
    "R-CON-1 header 1-1-8-0": (b"AMQP\1\1\x08\0", Differs(START, "nothing", "D-15")),
    "R-CON-1 header 1-1-9-1": (b"AMQP\1\1\x09\1", Differs(START, "nothing", "D-15")),
    "R-CON-2 header 0-0-9-2": (b"AMQP\0\0\x09\2", "nothing"),
    "R-CON-2 header 0-0-9-0": (b"AMQP\0\0\x09\0", "nothing"),
    "R-CON-2 header 0-0-8-0": (b"AMQP\0\0\x08\0", "nothing"),
    "R-CON-2 header of AMQP 1.0": (b"AMQP\0\1\0\0", "nothing"),
    "R-CON-2 header of AMQP 1.0 with SASL": (b"AMQP\3\1\0\0", "nothing"),
    "R-CON-2 header of AMQP 1.0 with TLS": (b"AMQP\2\1\0\0", "nothing"),
    "R-CON-2 HTTP": (b"GET / HTTP/1.1\r\n\r\n", "nothing"),
    "R-CON-2 TLS": (b"\x16\x03\1\0\xa5\1\0\0\xa1\x03\x03", "nothing"),
    "R-CON-4 nothing is sent": (b"", "nothing"),
    "R-CON-4 half a header": (b"AMQP\0", "nothing"),
    "R-CON-4 nothing after the header": (HEADER, START),
    "R-CON-4 nothing after the login": (LOGIN, TUNE),
    "R-CON-4 nothing after tune-ok": (TUNED, TUNE),
    "R-CON-4 open before the login": (HEADER + OPEN, START),
    "R-CON-4 tune-ok before the login": (HEADER + tune_ok(), START),
    "R-CON-4 close before the login": (HEADER + END, START),
    "R-CON-4 secure-ok unasked": (HEADER + M.ConnectionSecureOk(b"x").encode(0), START),
    "R-CON-4 channel.open before the login": (HEADER + M.ChannelOpen().encode(1), START),
    "R-CON-4 a body before the login": (HEADER + frame(3, 1, b"x"), START),
    "R-CON-4 a header on 0 before the login": (HEADER + frame(2, 0, b"x"), START),
    "R-CON-4 unknown frame before the login": (HEADER + frame(7, 0, b"x"), START),
    "R-CON-4 unknown method before the login": (HEADER + frame(1, 0, b"\0\x63\0\x63"), START),
    "R-CON-4 wrong end octet before the login": (HEADER + start_ok()[:-1] + b"\0", START),
    "R-CON-4 start-ok cut short": (HEADER + frame(1, 0, start_ok()[7:-5]), START),
    "R-CON-4 heartbeat before the login": (
        HEADER + frame(8, 0, b"") + start_ok() + tune_ok() + OPEN + END,
        OPENED,
    ),
    "R-CON-3 AMQPLAIN": (
        HEADER + start_ok("AMQPLAIN", amqplain()) + tune_ok() + OPEN + END,
        OPENED,
    ),
    "R-CON-3 another locale": (
        HEADER
        + M.ConnectionStartOk({}, "PLAIN", plain(), "de_DE").encode(0)
        + tune_ok()
        + OPEN
        + END,
        OPENED,
    ),
    "R-CON-5 wrong password": (HEADER + start_ok(response=plain("guest", "x")), START),
    "R-CON-5 wrong password, told": (
        HEADER + start_ok(response=plain("guest", "x"), properties=CLOSE_CAPABILITY),
        PLAIN_REFUSED,
    ),
    "R-CON-5 no password, told": (
        HEADER + start_ok(response=b"\0guest\0", properties=CLOSE_CAPABILITY),
        PLAIN_REFUSED,
    ),
    "R-CON-5 unknown user, told": (
        HEADER + start_ok(response=plain("nobody", "x"), properties=CLOSE_CAPABILITY),
        PLAIN_REFUSED,
    ),
    "R-CON-5 AMQPLAIN, wrong password, told": (
        HEADER + start_ok("AMQPLAIN", amqplain("guest", "x"), CLOSE_CAPABILITY),
        AMQPLAIN_REFUSED,
    ),
    "R-CON-5 AMQPLAIN, password 5, told": (
        HEADER
        + start_ok(
            "AMQPLAIN", encode_table({"LOGIN": "guest", "PASSWORD": 5})[4:], CLOSE_CAPABILITY
        ),
        AMQPLAIN_REFUSED,
    ),
    "R-CON-6 unknown mechanism": (HEADER + start_ok("SCRAM-SHA-256"), START),
    "R-CON-6 mechanism in small letters": (HEADER + start_ok("plain"), START),
    "R-CON-6 EXTERNAL": (HEADER + start_ok("EXTERNAL", b"", CLOSE_CAPABILITY), START),
    "R-CON-6 PLAIN without separators": (
        HEADER + start_ok(response=b"guest", properties=CLOSE_CAPABILITY),
        START,
    ),
    "R-CON-6 PLAIN without password": (
        HEADER + start_ok(response=b"\0guest", properties=CLOSE_CAPABILITY),
        START,
    ),
    "R-CON-6 PLAIN for somebody else": (
        HEADER + start_ok(response=b"me\0guest\0guest", properties=CLOSE_CAPABILITY),
        START,
    ),
    "R-CON-6 PLAIN with three separators": (
        HEADER + start_ok(response=b"\0guest\0gu\0est", properties=CLOSE_CAPABILITY),
        START,
    ),
    "R-CON-6 AMQPLAIN cut short": (
        HEADER + start_ok("AMQPLAIN", b"\5LOGINS\0\0\0", CLOSE_CAPABILITY),
        START,
    ),
    "R-CON-6 AMQPLAIN without password": (
        HEADER + start_ok("AMQPLAIN", encode_table({"LOGIN": "guest"})[4:], CLOSE_CAPABILITY),
        START,
    ),
    "R-CON-8 start-ok of 4000 bytes": (
        HEADER + start_ok(properties={"x": "y" * 3900}) + tune_ok() + OPEN + END,
        OPENED,
    ),
    "R-CON-8 start-ok of 5000 bytes": (HEADER + start_ok(properties={"x": "y" * 5000}), START),
    "R-CON-8 smallest frame_max": (LOGIN + tune_ok(2047, 4096) + OPEN + END, OPENED),
    "R-CON-8 one channel": (LOGIN + tune_ok(1) + OPEN + END, OPENED),
    "R-CON-9 R-ERR-23 frame_max 0": (
        LOGIN + tune_ok(2047, 0),
        no_tune(f"frame_max = 0 {HIGHER} (131072)"),
    ),
    "R-CON-9 R-ERR-23 frame_max too large": (
        LOGIN + tune_ok(2047, 131_073),
        no_tune(f"frame_max = 131073 {HIGHER} (131072)"),
    ),
    "R-CON-9 R-ERR-23 frame_max too small": (
        LOGIN + tune_ok(2047, 4095),
        no_tune("frame_max = 4095 is lower than the minimum allowed value (4096)"),
    ),
    "R-CON-9 R-ERR-23 channel_max 0": (
        LOGIN + tune_ok(0),
        no_tune(f"channel_max = 0 (no limit) {HIGHER} (2047)"),
    ),
    "R-CON-9 R-ERR-23 channel_max too large": (
        LOGIN + tune_ok(2048),
        no_tune(f"channel_max = 2048 {HIGHER} (2047)"),
    ),
    "R-CON-10 heartbeat above the proposal": (
        LOGIN + tune_ok(heartbeat=65_535) + OPEN + END,
        OPENED,
    ),
    "R-CON-11 R-ERR-20 unknown vhost": (
        TUNED + M.ConnectionOpen("nosuch").encode(0),
        fault(530, "NOT_ALLOWED - vhost nosuch not found", 40),
    ),
    "R-CON-11 empty vhost": (
        TUNED + M.ConnectionOpen("").encode(0),
        fault(530, "NOT_ALLOWED - vhost  not found", 40),
    ),
    "R-FRM-4 second start-ok": (LOGIN + start_ok(), early(fault(504, f"{STATE}tuning", 11))),
    "R-FRM-4 open before tune-ok": (LOGIN + OPEN, early(fault(504, f"{STATE}tuning", 40))),
    "R-FRM-4 channel.open before tune-ok": (
        LOGIN + M.ChannelOpen().encode(1),
        early(fault(505, NOT_YET, 0)),
    ),
    "R-FRM-4 close before tune-ok": (LOGIN + END, Differs(TUNE, OPENED, "D-16")),
    "R-FRM-4 close before open": (
        TUNED + END,
        Differs(fault(504, f"{STATE}opening", 50), OPENED, "D-16"),
    ),
    "R-FRM-4 second tune-ok before open": (TUNED + tune_ok(), fault(504, f"{STATE}opening", 31)),
    "R-FRM-4 start-ok before open": (TUNED + start_ok(), fault(504, f"{STATE}opening", 11)),
    "R-FRM-4 channel.open before open": (
        TUNED + M.ChannelOpen().encode(1),
        fault(505, NOT_YET, 0),
    ),
}


@pytest.fixture(scope="session")
def dialogues() -> Iterator[Callable[[Server, str], Heard]]:
    """Start all dialogues with a server at once; return what was heard in one of them."""
    running: dict[tuple[str, str], Dialogue] = {}

    def heard(server: Server, name: str) -> Heard:
        if (server.name, name) not in running:
            for each, (sent, _) in DIALOGUES.items():
                running[server.name, each] = Dialogue(server.port, sent)
        return running[server.name, name].hear()

    yield heard
    for dialogue in running.values():
        dialogue.close()


@pytest.mark.parametrize("name", DIALOGUES)
def test_dialogue(server: Server, dialogues: Callable[[Server, str], Heard], name: str) -> None:
    """R-CON-1 to R-CON-11, R-FRM-4, R-ERR-20, R-ERR-22, R-ERR-23."""
    heard = dialogues(server, name)
    assert heard.last == expected(server, DIALOGUES[name][1])
    if heard.last == "nothing":
        # R-CON-2, R-CON-4: our header for theirs, nothing for silence.
        assert heard.octets == (b"" if "R-CON-4" in name else HEADER)
        assert heard.is_ended


def test_start_says_what_the_server_can(server: Server) -> None:
    """R-CON-3, R-CON-8."""
    dialogue = Dialogue(server.port, TUNED + OPEN + END)
    start = dialogue.hear().methods[0]
    dialogue.close()
    assert isinstance(start, M.ConnectionStart)
    assert (start.version_major, start.version_minor) == (0, 9)
    assert sorted(start.mechanisms.split()) == [b"AMQPLAIN", b"PLAIN"]
    assert start.locales == b"en_US"
    properties = start.server_properties
    names = {"product", "version", "platform", "copyright", "information", "cluster_name"}
    assert names <= properties.keys()
    assert all(type(properties[name]) is str and properties[name] for name in names)
    assert properties["version"] == "3.10.8"
    capabilities: Any = properties["capabilities"]
    assert set(capabilities.values()) == {True}
    assert capabilities.keys() == {
        "publisher_confirms",
        "exchange_exchange_bindings",
        "basic.nack",
        "consumer_cancel_notify",
        "connection.blocked",
        "consumer_priorities",
        "authentication_failure_close",
        "per_consumer_qos",
        "direct_reply_to",
    }


def test_tune_proposes(server: Server) -> None:
    """R-CON-8."""
    dialogue = Dialogue(server.port, TUNED + OPEN + END)
    tune = dialogue.hear().methods[1]
    dialogue.close()
    assert isinstance(tune, M.ConnectionTune)
    assert (tune.channel_max, tune.frame_max, tune.heartbeat) == (2047, 131_072, 60)


def test_open_ok_and_close_ok(server: Server) -> None:
    """R-CON-11: the answers of a handshake in order."""
    dialogue = Dialogue(server.port, TUNED + OPEN + END)
    heard = dialogue.hear()
    dialogue.close()
    names = [type(method).__name__ for method in heard.methods]
    assert names == [START, TUNE, "ConnectionOpenOk", OPENED]
