"""The generated methods: vectors, cut payloads, freshness of the file."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from brokerd.amqp import methods
from brokerd.amqp.errors import EncodeError, FrameError
from brokerd.amqp.methods import METHODS, Method

ROOT = Path(__file__).resolve().parents[3]

#: Written by hand from the specification's field lists, not by our own encoder.
VECTORS: list[tuple[Method, str]] = [
    (methods.ConnectionTuneOk(2047, 131072, 60), "000a001f 07ff 00020000 003c"),
    (methods.ConnectionOpen("/"), "000a0028 012f 00 00"),
    (methods.ConnectionClose(320, "x", 10, 40), "000a0032 0140 0178 000a 0028"),
    (methods.ConnectionBlocked("low"), "000a003c 036c6f77"),
    (methods.ConnectionUpdateSecret(b"s", "r"), "000a0046 00000001 73 0172"),
    (methods.ChannelOpen(), "0014000a 00"),
    (methods.ChannelOpenOk(), "0014000b 00000000"),
    (methods.ChannelFlow(True), "00140014 01"),
    (methods.AccessRequestOk(1), "001e000b 0001"),
    (
        methods.ExchangeDeclare(0, "e", "topic", durable=True, nowait=True),
        "0028000a 0000 0165 05746f706963 12 00000000",
    ),
    (methods.ExchangeBind(0, "d", "s", "k"), "0028001e 0000 0164 0173 016b 00 00000000"),
    (methods.ExchangeUnbindOk(), "00280033"),
    (
        methods.QueueDeclare(0, "q", exclusive=True, arguments={"x": 1}),
        "0032000a 0000 0171 04 00000007 01784900000001",
    ),
    (methods.QueueDeclareOk("q", 3, 4), "0032000b 0171 00000003 00000004"),
    (methods.QueueUnbind(0, "q", "e", "k"), "00320032 0000 0171 0165 016b 00000000"),
    (methods.BasicQos(0, 100, True), "003c000a 00000000 0064 01"),
    (
        methods.BasicConsume(0, "q", "c", no_ack=True),
        "003c0014 0000 0171 0163 02 00000000",
    ),
    (methods.BasicPublish(0, "e", "k", True, False), "003c0028 0000 0165 016b 01"),
    (
        methods.BasicDeliver("c", 5, True, "e", "k"),
        "003c003c 0163 0000000000000005 01 0165 016b",
    ),
    (methods.BasicGetOk(5, False, "e", "k", 9), "003c0047 0000000000000005 00 0165 016b 00000009"),
    (methods.BasicAck(5, True), "003c0050 0000000000000005 01"),
    (methods.BasicNack(5, True, True), "003c0078 0000000000000005 03"),
    (methods.BasicRecoverAsync(True), "003c0064 01"),
    (methods.ConfirmSelect(), "0055000a 00"),
    (methods.TxCommitOk(), "005a0015"),
]


@pytest.mark.parametrize(("method", "text"), VECTORS, ids=[m.NAME for m, _ in VECTORS])
def test_vector(method: Method, text: str) -> None:
    payload = bytes.fromhex(text)
    assert method.encode(7) == b"\x01\x00\x07" + len(payload).to_bytes(4, "big") + payload + b"\xce"
    assert METHODS[int.from_bytes(payload[:4], "big")] is type(method)
    assert type(method).decode(payload, 4) == method


@pytest.mark.parametrize("kind", METHODS.values(), ids=lambda kind: kind.NAME)
def test_cut_or_longer_payload_cannot_be_decoded(kind: type[Method]) -> None:
    """R-FRM-5, R-ERR-28: 501, never another exception."""
    payload = kind().encode(1)[7:-1]
    assert kind.decode(payload, 4) == kind()
    with pytest.raises(FrameError, match="cannot decode <<"):
        kind.decode(payload + b"\x00", 4)
    for size in range(4, len(payload)):
        with pytest.raises(FrameError) as caught:
            kind.decode(payload[:size], 4)
        assert caught.value.code == 501


def test_content_follows_exactly_four_methods() -> None:
    with_content = {kind.NAME for kind in METHODS.values() if kind.HAS_CONTENT}
    assert with_content == {"basic.publish", "basic.return", "basic.deliver", "basic.get-ok"}


def test_credentials_are_not_shown() -> None:
    for method in (
        methods.ConnectionStartOk({}, "PLAIN", b"\0u\0hunter2", "en_US"),
        methods.ConnectionSecureOk(b"hunter2"),
        methods.ConnectionUpdateSecret(b"hunter2", "r"),
    ):
        assert "hunter2" not in repr(method)
        assert "***" in repr(method)
    assert repr(methods.BasicAck(3, True)) == "BasicAck(delivery_tag=3, multiple=True)"


@pytest.mark.parametrize(
    "kind", [kind for kind in METHODS.values() if kind.FIELDS], ids=lambda kind: kind.NAME
)
def test_a_method_for_an_impossible_channel_is_our_own_fault(kind: type[Method]) -> None:
    with pytest.raises(EncodeError, match=re.escape(kind.NAME)):
        kind().encode(1 << 16)


def test_numbers_out_of_range_are_our_own_fault() -> None:
    with pytest.raises(EncodeError):
        methods.BasicAck(2**64).encode(1)
    with pytest.raises(EncodeError):
        methods.QueueDeclare(queue="q" * 256).encode(1)


def test_methods_differ_by_class_and_by_field() -> None:
    assert methods.TxSelect() != methods.TxCommit()
    assert methods.BasicAck(1) != methods.BasicAck(2)


def test_generated_file_is_fresh() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "generate_amqp.py"), "--check"],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout.decode()
