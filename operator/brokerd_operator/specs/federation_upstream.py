"""The FederationUpstream kind: a federation-upstream parameter of the broker (R-FED-2). PURE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from brokerd_operator.specs import settings, units
from brokerd_operator.specs.model import (
    NO_INPUTS,
    Desired,
    DesiredObject,
    Identity,
    Inputs,
    Invalid,
    JsonObject,
    Meta,
    Reference,
    TopologySpec,
    Waiting,
    name_problem,
    parse_as,
)
from brokerd_operator.specs.remote import Remote


class FederationUpstreamSpec(Remote, TopologySpec):
    """An upstream. The broker treats an unchanged parameter as no change (R-FX-17)."""

    KIND: ClassVar[str] = "FederationUpstream"
    BROKER_KIND: ClassVar[str] = "parameter"

    exchange: str | None = None
    queue: str | None = None
    consumer_tag: str | None = None
    prefetch_count: int = 1000
    ack_mode: Literal["on-confirm", "on-publish", "no-ack"] = "on-confirm"
    max_hops: int = 1
    reconnect_delay: units.Milliseconds = 5000
    expires: units.Milliseconds | None = None
    message_ttl: units.Milliseconds | None = Field(default=None, alias="messageTTL")
    trust_user_id: bool = False
    queue_type: Literal["classic", "quorum"] = "classic"
    resource_cleanup_mode: Literal["default", "never"] = "default"
    channel_use_mode: Literal["multiple", "single"] = "multiple"

    def problem(self, meta: Meta) -> Invalid | None:
        vhosts = (("endpoints.vhost", item.vhost) for item in self.endpoints)
        return super().problem(meta) or name_problem(
            ("exchange", self.exchange),
            ("queue", self.queue),
            ("consumerTag", self.consumer_tag),
            *vhosts,
        )

    def references(self, meta: Meta) -> tuple[Reference, ...]:
        return tuple(dict.fromkeys(self.remote_references(meta)))

    def identities(self, meta: Meta, inputs: Inputs = NO_INPUTS) -> tuple[Identity, ...]:
        return (Identity("parameter", self.vhost, self._parameter_name(meta)),)

    def _parameter_name(self, meta: Meta) -> str:
        return f"federation-upstream/{self.resolved_name(meta)}"

    def desired(self, meta: Meta, inputs: Inputs = NO_INPUTS) -> Desired:
        uris = self.remote_uris(meta, inputs)
        if not isinstance(uris, list):
            return uris
        authorities = self.authorities(meta, inputs)
        if isinstance(authorities, Invalid | Waiting):
            return authorities
        value: JsonObject = {
            "uri": uris[0] if len(uris) == 1 else uris,
            "prefetch-count": self.prefetch_count,
            "ack-mode": self.ack_mode,
            "max-hops": self.max_hops,
            # RabbitMQ counts this one in seconds and takes fractions.
            "reconnect-delay": seconds(self.reconnect_delay),
            "trust-user-id": self.trust_user_id,
            "queue-type": self.queue_type,
            "resource-cleanup-mode": self.resource_cleanup_mode,
            "channel-use-mode": self.channel_use_mode,
            **settings.present(
                {
                    "exchange": self.exchange,
                    "queue": self.queue,
                    "consumer-tag": self.consumer_tag,
                    "expires": self.expires,
                    "message-ttl": self.message_ttl,
                    "ca-certificates": authorities,
                }
            ),
        }
        name = self._parameter_name(meta)
        return (DesiredObject("parameter", self.vhost, name, {"value": value}, ("value.uri",)),)


def seconds(milliseconds: int) -> int | float:
    """The same time as RabbitMQ writes it."""
    return milliseconds // 1000 if milliseconds % 1000 == 0 else milliseconds / 1000


def parse(body: Mapping[str, Any]) -> FederationUpstreamSpec | Invalid:
    return parse_as(FederationUpstreamSpec, body)
