"""The Shovel kind: a `shovel` parameter of the broker. PURE.

An end is the broker itself, in a vhost that the resource may name, or another broker (remote.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal
from urllib.parse import quote

from brokerd_operator.specs import arguments as x_arguments
from brokerd_operator.specs import settings, units
from brokerd_operator.specs.federation_upstream import seconds
from brokerd_operator.specs.model import (
    NO_INPUTS,
    Desired,
    DesiredObject,
    Identity,
    Inputs,
    Invalid,
    JsonObject,
    Meta,
    Part,
    Reference,
    TopologySpec,
    Waiting,
    name_problem,
    parse_as,
)
from brokerd_operator.specs.remote import Remote


class End(Remote):
    """Where messages come from, or go."""

    #: Of the broker itself; the resource's own when absent.
    vhost: str | None = None
    queue: str | None = None
    exchange: str | None = None
    exchange_key: str | None = None
    queue_arguments: tuple[x_arguments.Argument, ...] = ()

    def uris(self, vhost: str, meta: Meta, inputs: Inputs) -> list[str] | Invalid | Waiting:
        """Where the end is; `vhost` is the resource's own."""
        if self.uri_secret_ref is not None or self.endpoints:
            return self.remote_uris(meta, inputs, vhost)
        return [f"amqp:///{quote(self.vhost or vhost, safe='')}"]


class ShovelSource(End):
    """Where messages come from."""

    consumer_arguments: tuple[x_arguments.Argument, ...] = ()
    prefetch_count: int = 1000
    delete_after: int | str = "never"


class PublishProperties(Part):
    """What is written over the properties of every message."""

    content_type: str | None = None
    content_encoding: str | None = None
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | None = None
    message_id: str | None = None
    type: str | None = None
    user_id: str | None = None
    app_id: str | None = None


class ShovelDestination(End):
    """Where messages go."""

    add_forward_headers: bool = False
    add_timestamp_header: bool = False
    #: The broker's profile decides when absent.
    unroutable: Literal["keep", "drop"] | None = None
    publish_properties: PublishProperties = PublishProperties()


class ShovelSpec(TopologySpec):
    """A shovel. One that deletes itself when it has done its work is not made again."""

    KIND: ClassVar[str] = "Shovel"
    BROKER_KIND: ClassVar[str] = "parameter"

    source: ShovelSource
    destination: ShovelDestination
    ack_mode: Literal["on-confirm", "on-publish", "no-ack"] = "on-confirm"
    reconnect_delay: units.Milliseconds = 5000

    def problem(self, meta: Meta) -> Invalid | None:
        ends = (("source", self.source), ("destination", self.destination))
        named = [
            (f"{label}.{field}", name)
            for label, end in ends
            for field, name in (
                ("vhost", end.vhost),
                ("queue", end.queue),
                ("exchange", end.exchange),
                *(("endpoints.vhost", item.vhost) for item in end.endpoints),
            )
        ]
        return super().problem(meta) or name_problem(*named)

    def references(self, meta: Meta) -> tuple[Reference, ...]:
        ends = (self.source, self.destination)
        return tuple(dict.fromkeys(each for end in ends for each in end.remote_references(meta)))

    def identities(self, meta: Meta, inputs: Inputs = NO_INPUTS) -> tuple[Identity, ...]:
        return (Identity("parameter", self.vhost, f"shovel/{self.resolved_name(meta)}"),)

    def desired(self, meta: Meta, inputs: Inputs = NO_INPUTS) -> Desired:
        source, destination = self.source, self.destination
        value: JsonObject = {
            "src-prefetch-count": source.prefetch_count,
            "src-delete-after": source.delete_after,
            "dest-add-forward-headers": destination.add_forward_headers,
            "dest-add-timestamp-header": destination.add_timestamp_header,
            "ack-mode": self.ack_mode,
            # RabbitMQ counts this one in seconds and takes fractions.
            "reconnect-delay": seconds(self.reconnect_delay),
        }
        for prefix, end in (("src", source), ("dest", destination)):
            uris = end.uris(self.vhost, meta, inputs)
            if not isinstance(uris, list):
                return uris
            authorities = end.authorities(meta, inputs)
            if isinstance(authorities, Invalid | Waiting):
                return authorities
            table = x_arguments.to_table(end.queue_arguments, f"{prefix} queueArguments")
            if isinstance(table, Invalid):
                return table
            value[f"{prefix}-uri"] = uris[0] if len(uris) == 1 else uris
            value |= settings.present(
                {
                    f"{prefix}-queue": end.queue,
                    f"{prefix}-exchange": end.exchange,
                    f"{prefix}-exchange-key": end.exchange_key,
                    f"{prefix}-queue-args": table or None,
                    f"{prefix}-ca-certificates": authorities,
                }
            )
        consumer = x_arguments.to_table(source.consumer_arguments, "consumerArguments")
        if isinstance(consumer, Invalid):
            return consumer
        written = settings.present(destination.publish_properties.model_dump())
        value |= settings.present(
            {
                "src-consumer-args": consumer or None,
                "dest-publish-properties": written or None,
                "dest-unroutable": destination.unroutable,
            }
        )
        name = f"shovel/{self.resolved_name(meta)}"
        hidden = ("value.src-uri", "value.dest-uri")
        return (DesiredObject("parameter", self.vhost, name, {"value": value}, hidden),)


def parse(body: Mapping[str, Any]) -> ShovelSpec | Invalid:
    return parse_as(ShovelSpec, body)
