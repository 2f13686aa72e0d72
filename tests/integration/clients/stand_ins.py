"""What suites reach for besides the broker: a Docker API, in small.

aio-pika's and aiormq's suites ask a Docker daemon to run RabbitMQ in a container; they get told
that it runs already. It knows nothing of the broker's behaviour. Run inside the namespace by
`suites.py`; not for other tests.

    python -m tests.integration.clients.stand_ins docker PORT
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

#: What a request is answered with.
Answer = tuple[int, object]


def docker(method: str, path: str) -> Answer:
    """Answer as a daemon whose every container is the broker of this namespace."""
    if path.endswith("/json"):
        ports = {
            f"{port}/tcp": [{"HostIp": "127.0.0.1", "HostPort": str(port)}] for port in (5672, 5671)
        }
        state = {"Running": True, "Status": "running"}
        return 200, {"Id": "broker", "State": state, "NetworkSettings": {"Ports": ports}}
    if path.endswith("/create"):
        return (201, {"Id": "broker", "Warnings": []}) if "/containers" in path else (200, {})
    return (204, None) if method in ("POST", "DELETE") else (200, {})


class Handler(BaseHTTPRequestHandler):
    """One request of a suite."""

    answer: Callable[[str, str], Answer]

    def _respond(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status, content = type(self).answer(self.command, self.path.partition("?")[0])
        body = b"" if content is None else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_DELETE = _respond

    def log_message(self, format: str, *args: object) -> None:
        """Say a line per request, flushed: the log is read while the process runs."""
        print(format % args, flush=True)


def main(kind: str, port: str) -> None:
    """Serve until ended."""
    answers: dict[str, Callable[[str, str], Answer]] = {"docker": docker}
    Handler.answer = staticmethod(answers[kind])
    ThreadingHTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
