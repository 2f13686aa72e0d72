"""Links and shovels over a line that delays, stalls and is cut, while their brokers are killed."""

from __future__ import annotations

import hashlib
import socket
import threading
import time
from pathlib import Path

import pytest

from tests.integration import federation_kills
from tests.integration.bad_line import RETRANSMIT_S, BadLine, Quality

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]


def test_a_bad_line_is_slow_and_changes_nothing() -> None:
    """What it carries arrives whole and in order, each way after its delay."""
    sent = b"".join(hashlib.sha256(b"%d" % i).digest() for i in range(30_000))
    with socket.create_server(("127.0.0.1", 0)) as server:

        def echo() -> None:
            end, _ = server.accept()
            with end:
                while data := end.recv(65536):
                    end.sendall(data)

        answering = threading.Thread(target=echo)
        answering.start()
        quality = Quality(delay_s=0.05, loss=0.005)
        with BadLine(server.getsockname()[1], quality, seed=4) as line:
            began = time.monotonic()
            with socket.create_connection(("127.0.0.1", line.port), 10) as end:
                end.sendall(b"?")
                assert end.recv(1) == b"?"
                assert time.monotonic() - began >= 2 * quality.delay_s
                writing = threading.Thread(target=end.sendall, args=(sent,))
                writing.start()
                got = bytearray()
                while len(got) < len(sent):
                    got += end.recv(65536)
                writing.join()
            answering.join()
            assert got == sent
            assert line.stalls
            assert time.monotonic() - began >= RETRANSMIT_S


def test_a_line_is_cut_again_and_again() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        BadLine(server.getsockname()[1], Quality(cut_every_s=0.05)) as line,
    ):
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", line.port), 10) as end:
                try:
                    assert end.recv(1) == b""
                except ConnectionResetError:
                    continue
        assert line.cuts


def test_links_and_shovels_lose_nothing_over_a_bad_line(tmp_path: Path) -> None:
    """R-FED-5, R-FED-7: 50 ms each way, one segment of fifty lost, cuts, and a kill at each end."""
    quality = Quality(delay_s=0.05, loss=0.02, cut_every_s=2.0)
    _, lanes = federation_kills.run(tmp_path, 2, 3, quality)
    for lane in lanes:
        assert lane.got, lane.name
        if lane.ack_mode == federation_kills.CONFIRMED_MODE:
            assert lane.lost == 0, lane.name
