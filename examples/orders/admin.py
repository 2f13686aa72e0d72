"""The few administrative calls that the demo makes, over the Admin service."""

from __future__ import annotations

import base64
import json
from typing import Any

import grpc

from brokerd.rpc.v1 import admin_pb2, admin_pb2_grpc

_TIMEOUT_S = 10.0


class Admin:
    """A member's Admin service, as guest on this machine."""

    def __init__(self, port: int) -> None:
        self._stub = admin_pb2_grpc.AdminStub(grpc.insecure_channel(f"127.0.0.1:{port}"))
        token = base64.b64encode(b"guest:guest").decode()
        self._metadata = (("authorization", f"Basic {token}"),)

    def queue(self, name: str) -> dict[str, Any]:
        """Return the live row of a queue."""
        request = admin_pb2.ListRequest(kind="queues", vhost="/")
        for page in self._stub.List(request, metadata=self._metadata, timeout=_TIMEOUT_S):
            for text in page.rows:
                row: dict[str, Any] = json.loads(text)
                if row["name"] == name:
                    return row
        raise KeyError(f"no queue '{name}'")

    def alarms(self) -> set[str]:
        """Return the members that have an alarm, as this member knows it."""
        request = admin_pb2.ListRequest(kind="members")
        pages = self._stub.List(request, metadata=self._metadata, timeout=_TIMEOUT_S)
        rows = [json.loads(text) for page in pages for text in page.rows]
        return {row["name"] for row in rows if row.get("alarms")}

    def set_watermark(self, value: str) -> None:
        """Set this member's memory watermark; "" goes back to the configured one."""
        request = admin_pb2.SetSettingsRequest(settings={"vm_memory_high_watermark": value})
        self._stub.SetSettings(request, metadata=self._metadata, timeout=_TIMEOUT_S)
