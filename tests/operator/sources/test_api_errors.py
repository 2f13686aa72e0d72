"""What the operator makes of answers of the API server that are no objects."""

from __future__ import annotations

import asyncio
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from brokerd_operator.sources.api import Api, ApiError

MANAGED = {"metadata": {"name": "q", "managedFields": [{"manager": "kubectl"}]}}


class Answers(http.server.BaseHTTPRequestHandler):
    """404 in plain text for a group, as kube-apiserver does it; 502 in HTML for all else."""

    def do_GET(self) -> None:
        status, body = 502, b"<html>bad gateway</html>"
        if self.path == "/apis/no.such.group":
            status, body = 404, b"404 page not found\n"
        elif self.path.startswith("/queues"):
            status = 200
            found = MANAGED if self.path == "/queues/q" else {"items": [MANAGED], "metadata": {}}
            body = json.dumps(found).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing on the terminal."""


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        address = f"http://127.0.0.1:{server.server_port}"
        config = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": address}}],
            "users": [{"name": "u", "user": {}}],
        }
        (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
        monkeypatch.setattr(
            "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION",
            str(tmp_path / "kubeconfig"),
        )
        found = Api()
        yield found
        found.close()
        server.shutdown()
        thread.join()


def test_a_group_that_is_not_there_is_nothing(api: Api) -> None:
    assert asyncio.run(api.get("/apis/no.such.group")) is None


def test_a_page_in_between_is_an_error_of_the_api(api: Api) -> None:
    with pytest.raises(ApiError) as caught:
        asyncio.run(api.get("/api/v1/pods"))
    assert caught.value.status == 502


def test_who_wrote_which_field_is_not_kept(api: Api) -> None:
    assert asyncio.run(api.get("/queues/q")) == {"metadata": {"name": "q"}}
    assert asyncio.run(api.list("/queues"))[0] == [{"metadata": {"name": "q"}}]
