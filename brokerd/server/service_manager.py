"""Tells the service manager that started this process, such as systemd, how far it is.

sd_notify(3): a datagram to the socket that the environment names; nothing without one.  For app.py.
"""

from __future__ import annotations

import logging
import os
import socket

log = logging.getLogger(__name__)

VARIABLE = "NOTIFY_SOCKET"
READY = "READY=1"
STOPPING = "STOPPING=1"


def notify(state: str) -> None:
    """Send a state; a manager that cannot be told costs a warning and never the member."""
    address = os.environ.get(VARIABLE, "")
    if not address:
        return
    if address.startswith("@"):
        # Of Linux' abstract names.
        address = f"\0{address[1:]}"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            # A datagram socket of the manager's that is full must not stop the loop.
            sock.setblocking(False)
            sock.connect(address)
            sock.send(state.encode())
    except OSError as error:
        log.warning("the service manager at %s cannot be told %s: %s", address, state, error)
