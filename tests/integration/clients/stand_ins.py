"""What suites reach for besides the broker: a Docker API and RabbitMQ's management API, in small.

aio-pika's and aiormq's suites ask a Docker daemon to run RabbitMQ in a container; they get told
that it runs already. amqp091-go's recovery tests cut connections through the management API, which
brokerd has not: here the same two calls are answered by the broker's command line. Neither knows
anything of the broker's behaviour. Run inside the namespace by `suites.py`; not for other tests.

    python -m tests.integration.clients.stand_ins docker PORT
    python -m tests.integration.clients.stand_ins management PORT CONTROL
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

#: What a request is answered with.
Answer = tuple[int, object]
CONTROL_SECONDS = 60


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


def management(control: str, method: str, path: str) -> Answer:
    """Answer GET /api/connections and DELETE /api/connections/NAME."""
    columns = ["pid", "name", "user_provided_name", "user", "state"]
    shown = subprocess.run(
        [control, "-q", "list_connections", *columns, "--formatter", "json"],
        capture_output=True,
        text=True,
        timeout=CONTROL_SECONDS,
    )
    rows = json.loads(shown.stdout or "[]")
    if method == "GET":
        for row in rows:
            row["client_properties"] = {"connection_name": row.get("user_provided_name", "")}
        return 200, rows
    name = unquote(path.rstrip("/").rpartition("/")[2])
    for row in rows:
        if row["name"] == name:
            closed = subprocess.run(
                [control, "-q", "close_connection", row["pid"], "Closed via management API"],
                timeout=CONTROL_SECONDS,
            )
            return (204, None) if closed.returncode == 0 else (500, {"error": "not closed"})
    return 404, {"error": "Object Not Found"}


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


def main(kind: str, port: str, control: str = "") -> None:
    """Serve until ended."""
    answers: dict[str, Callable[[str, str], Answer]] = {
        "docker": docker,
        "management": lambda method, path: management(control, method, path),
    }
    Handler.answer = staticmethod(answers[kind])
    ThreadingHTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
