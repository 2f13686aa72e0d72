"""Tokens of ServiceAccounts that a real API server made, at a real member."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path

import pika
import pika.exceptions
import pytest
import yaml

from tests.cluster_fixtures import Kubernetes
from tests.integration.grpc.test_admin_grpc import Admin, put
from tests.integration.members import cluster

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(400)]

NAMESPACE = "tokens-of-accounts"
ALL = {"configure": ".*", "write": ".*", "read": ".*"}


def settings(kube: Kubernetes, folder: Path) -> dict[str, str]:
    """Return what a member needs to know of the API server."""
    document = json.loads(kube.kubectl("get", "--raw", "/.well-known/openid-configuration"))
    server = yaml.safe_load(kube.kubeconfig.read_text())["clusters"][0]["cluster"]
    authority = folder / "ca.crt"
    if "certificate-authority-data" in server:
        authority.write_bytes(base64.b64decode(server["certificate-authority-data"]))
    else:
        authority.write_bytes(
            (kube.kubeconfig.parent / server["certificate-authority"]).read_bytes()
        )
    token = folder / "token"
    token.write_text(kube.kubectl("create", "token", "member", "-n", NAMESPACE))
    return {
        "BROKERD_KUBERNETES_ISSUER": document["issuer"],
        "BROKERD_KUBERNETES_JWKS_URL": server["server"] + "/openid/v1/jwks",
        "BROKERD_KUBERNETES_CACERTFILE": str(authority),
        "BROKERD_KUBERNETES_TOKEN_FILE": str(token),
    }


def test_a_token_of_the_api_server_is_a_password_of_the_user_it_stands_for(
    kube_api: Kubernetes, tmp_path: Path
) -> None:
    kube_api.kubectl("create", "namespace", NAMESPACE)
    for account in ("member", "orders", "other"):
        kube_api.kubectl("create", "serviceaccount", account, "-n", NAMESPACE)

    def token(account: str, *more: str) -> str:
        return kube_api.kubectl("create", "token", account, "-n", NAMESPACE, *more).strip()

    with cluster(tmp_path, 1, **settings(kube_api, tmp_path)) as [member]:
        admin = Admin(member.grpc_port)
        tags = [f"serviceaccount:{NAMESPACE}/orders"]
        admin.apply(
            put("user", "orders", {"password": "x", "tags": tags}, vhost=""),
            put("permission", "orders", ALL),
        )
        admin.channel.close()

        def connect(password: str) -> pika.BlockingConnection:
            return member.connect(credentials=pika.PlainCredentials("", password))

        with connect(token("orders", "--audience=brokerd")) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("orders")
            end = time.monotonic() + 1
            renewals = 0
            while time.monotonic() < end or renewals < 3:
                channel.basic_publish("", "orders", b"x", mandatory=True)
                if renewals < 3:
                    connection.update_secret(token("orders", "--audience=brokerd"), "kubelet")
                    renewals += 1
        # For the API server, or of an account that stands for nobody.
        for bad in (token("orders"), token("other", "--audience=brokerd")):
            with pytest.raises(pika.exceptions.ProbableAuthenticationError):
                connect(bad)
        log = member.log()
        assert "the token is for somebody else (aud)" in log
        assert "the token names nobody who is a user here" in log
