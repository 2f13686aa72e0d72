"""What clients and the member said to each other, as tshark reads it: no malformed AMQP frame.

The capture is of the member's own port on loopback, with traffic of pika, aio-pika, kombu,
amqp-tools and amqp091-go. tshark is the witness: its decoder is not ours.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
from collections import Counter
from pathlib import Path

import aio_pika
import kombu
import pika
import pytest

from tests.integration.clients import fetched
from tests.integration.clients.client_process import client_process
from tests.integration.members import Member, eventually

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning"),
]

DUMPCAP = ["dumpcap", "-q", "-i", "lo", "-B", "64"]
FIELDS = [
    *("_ws.malformed", "_ws.expert.message", "_ws.expert.severity"),
    *("amqp.type", "amqp.method.method", "tcp.dstport"),
]


def capture(member: Member, file: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start dumpcap on the member's port; it writes from the moment it says so."""
    if shutil.which("tshark") is None or os.geteuid() != 0:
        pytest.skip("needs root and tshark: apt-get install tshark")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*DUMPCAP, "-f", f"tcp port {member.amqp_port}", "-w", str(file)],
            stdout=output,
            stderr=output,
        )
    eventually(lambda: "File:" in log.read_text() or process.poll() is not None, "dumpcap")
    assert process.poll() is None, log.read_text()
    return process


def decoded(file: Path, port: int) -> str:
    """Return FIELDS of every packet with AMQP or a complaint in it, one line each."""
    command = ["tshark", "-r", str(file), "-d", f"tcp.port=={port},amqp", "-T", "fields"]
    command += ["-Y", "amqp or _ws.malformed or _ws.expert", "-E", "separator=|"]
    for field in FIELDS:
        command += ["-e", field]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


async def talk(member: Member) -> None:
    """Let each client declare, publish, return, consume, reject, fail and close."""
    url = f"amqp://guest:guest@127.0.0.1:{member.amqp_port}/"
    connection = member.connect()
    channel = connection.channel()
    channel.confirm_delivery()
    arguments = {"x-max-length": 5, "x-overflow": "reject-publish"}
    channel.queue_declare("wire", durable=True, arguments=arguments)
    headers = {"a": [1, -2, None, True, {"b": b"\0"}], "long": 2**40, "text": "é" * 300}
    properties = pika.BasicProperties(headers=headers, priority=3, expiration="60000")
    for size in (0, 1, 131_064, 131_065, 700_000):
        channel.basic_publish("", "wire", bytes(size), properties)
    with pytest.raises(pika.exceptions.NackError):
        channel.basic_publish("", "wire", b"over the limit")
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish("", "nowhere", b"returned", mandatory=True)
    for method, _, _ in channel.consume("wire", inactivity_timeout=60):
        if method is None or method.delivery_tag == 5:
            break
        channel.basic_nack(method.delivery_tag, requeue=False)
    channel.cancel()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker):
        channel.queue_declare("wire", durable=False)
    connection.close()
    async with await aio_pika.connect(url) as other:
        asked = await other.channel()
        queue = await asked.declare_queue("wire.aio", auto_delete=True)
        await asked.default_exchange.publish(aio_pika.Message(b"x" * 200_000), "wire.aio")
        await (await queue.get(timeout=60)).ack()
    with kombu.Connection(url) as third, third.SimpleQueue("wire.kombu") as simple:
        simple.put({"hello": ["world"]}, compression="zlib")
        simple.get(timeout=60).ack()


async def test_tshark_finds_no_malformed_frame(member: Member, tmp_path: Path) -> None:
    """R-FRM: decoded as AMQP on this port, nothing is malformed and no expert has a complaint."""
    commands = [fetched.go_client()] if shutil.which("go") else []
    file = tmp_path / "wire.pcapng"
    dumpcap = capture(member, file, tmp_path / "dumpcap.log")
    try:
        await talk(member)
        for command in commands:
            with client_process([*command, "everything", str(member.amqp_port)]) as client:
                client.finish()
    finally:
        dumpcap.send_signal(signal.SIGINT)
        dumpcap.wait(60)
    shown = await asyncio.to_thread(decoded, file, member.amqp_port)
    kinds: Counter[str] = Counter()
    complaints = []
    for line in shown.splitlines():
        malformed, message, severity, types, _, port = line.split("|")
        kinds.update(kind for kind in types.split(",") if kind)
        is_about_amqp = malformed or "AMQP" in message or "alformed" in message
        if is_about_amqp and int(port) != member.amqp_port:
            complaints.append((malformed, message, severity))
    print(json.dumps(kinds))
    # Methods, headers and bodies were all seen.
    assert kinds["1"] > 100, kinds
    assert min(kinds["2"], kinds["3"]) > 30, kinds
    assert complaints == []
