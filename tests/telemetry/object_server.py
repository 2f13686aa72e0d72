"""Object storage for tests: moto's S3 on loopback, which remembers what was asked and can fail.

Moto answers as S3 does, conditions included; the layer before it counts requests and, where a test
wants it, answers some with 503 or breaks the connection, before or after the request was done.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs
from wsgiref.types import StartResponse, WSGIEnvironment

import pytest
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

BUCKET = "telemetry"


class ObjectServer:
    """The server; `asked` has (method, path, query) of each request."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, dict[str, list[str]]]] = []
        #: Share of requests that fail, half of them after they were done.
        self.fails = 0.0
        self._rng = random.Random(5)
        self._inner = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self, threaded=True)
        self.url = f"http://127.0.0.1:{self._server.port}"

    def __call__(self, environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        query = parse_qs(environ["QUERY_STRING"], keep_blank_values=True)
        self.asked.append((environ["REQUEST_METHOD"], environ["PATH_INFO"], query))
        luck = self._rng.random()
        if luck >= self.fails:
            return self._inner(environ, start)
        if luck < self.fails / 2:
            # Done, and then nobody says so.
            list(self._inner(environ, lambda *_: _ignore))
        start("503 Slow Down", [("Content-Length", "0")])
        return [b""]

    def listings(self) -> list[dict[str, list[str]]]:
        """Return the queries of the listings so far."""
        return [
            query for method, _, query in self.asked if method == "GET" and "list-type" in query
        ]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Serve."""
        thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()


def _ignore(_: bytes) -> object:
    return None


@contextmanager
def serving(set_env: Callable[[str, str], None]) -> Iterator[ObjectServer]:
    """Serve an empty bucket, and let the environment name it as for any AWS program."""
    from botocore.session import get_session

    server = ObjectServer()
    for name, value in {
        "AWS_ENDPOINT_URL_S3": server.url,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "eu-central-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        # No file of the machine says anything else.
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }.items():
        set_env(name, value)
    with server.running():
        client: Any = get_session().create_client("s3", region_name="us-east-1")
        for item in client.list_buckets()["Buckets"]:
            for entry in client.list_objects_v2(Bucket=item["Name"]).get("Contents", ()):
                client.delete_object(Bucket=item["Name"], Key=entry["Key"])
            client.delete_bucket(Bucket=item["Name"])
        client.create_bucket(Bucket=BUCKET)
        client.close()
        server.asked.clear()
        yield server


@pytest.fixture
def object_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    """A server with an empty bucket for one test."""
    with serving(monkeypatch.setenv) as server:
        yield server
