"""What a member says of itself when it is ready."""

from __future__ import annotations

from typing import Any

from brokerd import config
from brokerd.config import ListenerConfig
from brokerd.server import banner


def said(users: list[str], *, guest: bool = False, **environ: Any) -> dict[str, str]:
    """Return the lines by their labels."""
    made = config.load(None, {f"BROKERD_{name}": value for name, value in environ.items()}, {})
    found = banner.lines(made, users, guest_is_guest=guest)
    return {line[: banner._WIDTH + 2].strip(): line[banner._WIDTH + 2 :] for line in found}


def test_all_listeners_for_outsiders_are_said_as_they_are() -> None:
    found = said(["guest"], guest=True, NODE_PORT_OFFSET="100", LISTENERS_HTTP="0")
    assert found["AMQP"] == "amqp://localhost:5772"
    assert found["gRPC, brokerctl"] == "localhost:5780"
    assert "health, metrics" not in found
    assert "AMQP, TLS" not in found
    assert found["user"] == "guest, password guest, from this machine only"


def test_no_listener_is_forgotten() -> None:
    """A port of ListenerConfig is said, or is known to be nobody's business."""
    found = said([], TLS_CERT_FILE="/x")
    assert len(found) == len(set(ListenerConfig.model_fields) - set(banner._NO_LISTENERS)) + 1
    assert found["AMQP, TLS"] == "amqps://localhost:5671"


def test_an_address_is_said_as_clients_write_it() -> None:
    assert said([], NODE_BIND="::1")["AMQP"] == "amqp://[::1]:5672"
    assert said([], NODE_BIND="10.0.0.1")["AMQP"] == "amqp://10.0.0.1:5672"


def test_who_can_log_in_is_said_and_where_the_password_is() -> None:
    assert said([])["user"] == "none: nobody can log in"
    assert said(["ann"])["user"] == "ann"
    assert said(["a", "b", "c", "d", "e"])["user"] == "a, b, c and 2 more"
    assert said(["guest"], guest=True, AUTH_LOOPBACK_USERS="")["user"].endswith("from everywhere")
    made = said(["root"], AUTH_ADMIN_USER="root", AUTH_ADMIN_PASSWORD_FILE="/run/secret")
    assert made["user"].startswith("root, with the password in /run/secret when")
    assert said(["ann"], DEFINITIONS_PATH="/d.json")["user"] == "ann; definitions: /d.json"
