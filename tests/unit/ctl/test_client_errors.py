"""What brokerctl says when a member cannot be asked: what is wrong, and what to do."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from brokerd.ctl import errors
from brokerd.ctl.client import AdminClient
from brokerd.ctl.settings import Settings


class Refusal:
    """An error of gRPC."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        self._code = code
        self._text = text

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._text


@pytest.mark.parametrize(
    ("code", "text", "words", "status"),
    [
        (
            grpc.StatusCode.UNAUTHENTICATED,
            "login refused: wrong user or password (guest only from the member's own",
            "does not let 'guest' in: wrong user or password.\n--user and --password",
            errors.EXIT_NO_PERMISSION,
        ),
        (
            grpc.StatusCode.UNAVAILABLE,
            "Failed parsing HTTP/2 (Trying to connect an http1.x server (HTTP status 400))",
            "it answers with HTTP/1.1, as the ports of the HTTP API and of metrics do\n\n"
            " * Is this its gRPC port",
            errors.EXIT_UNAVAILABLE,
        ),
        (
            grpc.StatusCode.UNAVAILABLE,
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:5680: Custom "
            "verification check failed with error: UNAUTHENTICATED: Hostname Verification Check "
            "failed.",
            "its certificate does not name this address\n\n * -n must have a name that stands in",
            errors.EXIT_UNAVAILABLE,
        ),
        (
            grpc.StatusCode.UNIMPLEMENTED,
            "only Peer/Exchange is served here",
            "must name a member's gRPC port (5680).",
            errors.EXIT_SOFTWARE,
        ),
    ],
)
def test_an_answer_that_does_not_help_is_one_that_does(
    code: grpc.StatusCode, text: str, words: str, status: int
) -> None:
    with AdminClient(Settings(), "127.0.0.1:1") as client:
        error = client._error(Refusal(code, text))
    assert words in str(error)
    assert error.exit_code == status


def test_a_queue_that_takes_nothing_is_no_member_that_cannot_be_reached() -> None:
    text = "home member n0 of queue 'orders' in vhost '/' is down"
    with AdminClient(Settings(), "127.0.0.1:1") as client:
        error = client._error(Refusal(grpc.StatusCode.UNAVAILABLE, text))
    assert str(error) == text
    assert error.exit_code == errors.EXIT_UNAVAILABLE


@pytest.mark.parametrize("address", ["127.0.0.1:65536", "127.0.0.1:0", "127.0.0.1:x"])
def test_a_port_that_cannot_be_is_refused(address: str) -> None:
    """gRPC connects to another one."""
    with pytest.raises(errors.CtlError, match="has no port from 1 to 65535"):
        AdminClient(Settings(), address)


def test_an_authority_that_is_none_is_said(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("no certificate")
    with pytest.raises(errors.CtlError, match=r"--ca-file .*ca\.pem holds no certificate in PEM"):
        AdminClient(Settings(ca_file=str(file)), "127.0.0.1:1")
