"""Headers by which frameworks say why a message is in their error queue, and where it came from.

Such a message was published by a client: the broker recorded no death, and what is read here may
be anything.  docs/reference/triage.md has the table for users; a test compares them.  Sources:

- Spring AMQP, `RepublishMessageRecoverer` (docs.spring.io/spring-amqp/reference, "Resilience:
  Recovering from Errors and Broker Failures"): x-exception-stacktrace, x-exception-message,
  x-original-exchange, x-original-routingKey.
- NServiceBus (docs.particular.net/nservicebus/messaging/headers, "Error forwarding headers").
- MassTransit (masstransit.io/documentation/concepts/exceptions): MT-Reason, MT-Fault-….
- Rebus (github.com/rebus-org/Rebus, `Messages/Headers.cs`): rbs2-source-queue, rbs2-msg-type.
- Symfony Messenger (github.com/symfony/messenger, `Stamp/ErrorDetailsStamp.php`): stamps are
  headers, each a list in JSON.  Its failure transport keeps the name of a transport, not a queue's.
- Celery (docs.celeryq.dev, "Message Protocol"): the header `task` names the type; failures leave no
  header, and what it rejects dies in the broker.  Laravel keeps failed jobs in a database.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

Headers: TypeAlias = Mapping[str, object]

#: Characters of a header that are looked at: stack traces are long.
HEADER_LOOKED_AT_MAX = 1 << 16
#: Characters that are kept of anything.
KEPT_MAX = 255

_CAUSE = "Caused by: "


@dataclass(slots=True)
class Framework:
    """One framework's headers; None where it has none for this."""

    name: str
    #: A message with one of these is in its error queue.
    marks: tuple[str, ...]
    reason: str | None = None
    #: The queue in which it failed.
    queue: str | None = None
    exchange: str | None = None
    routing_key: str | None = None
    exception: str | None = None
    type: str | None = None
    #: How the header of the queue, the exception or the type is read, if not as it is.
    read_queue: Callable[[str], str] | None = None
    read_exception: Callable[[str], str] | None = None
    read_type: Callable[[str], str] | None = None


def text_of(headers: Headers, name: str | None) -> str:
    """Return a header's text, "" where there is none or it is no text; cut where it is long."""
    value = headers.get(name) if name is not None else None
    return value[:HEADER_LOOKED_AT_MAX] if isinstance(value, str) else ""


def framework_of(headers: Headers) -> Framework | None:
    """Return the framework whose error queue a message with these headers was published to."""
    for framework in FRAMEWORKS:
        if any(mark in headers for mark in framework.marks):
            return framework
    return None


def read(headers: Headers, name: str | None, form: Callable[[str], str] | None) -> str:
    """Return what a header says, in its framework's form."""
    text = text_of(headers, name)
    return (form(text) if form is not None and text else text)[:KEPT_MAX]


def _root_cause(trace: str) -> str:
    """The class of the innermost exception of a Java stack trace."""
    at = trace.rfind(_CAUSE)
    line = trace[at + len(_CAUSE) if at >= 0 else 0 :].split("\n", 1)[0]
    return line.split(":", 1)[0].strip()


def _queue_of_address(address: str) -> str:
    """The queue of rabbitmq://host/vhost/queue?options."""
    return address.split("?", 1)[0].rsplit("/", 1)[-1]


def _first_type(types: str) -> str:
    """The name of the first of .NET's types, without its assembly."""
    return types.split(";", 1)[0].split(",", 1)[0].strip()


def _exception_of_stamp(stamps: str) -> str:
    """The class in the newest of Symfony's stamps."""
    try:
        found = json.loads(stamps)
    except (ValueError, RecursionError):
        return ""
    newest = found[-1] if isinstance(found, list) and found else None
    value = newest.get("exceptionClass") if isinstance(newest, dict) else None
    return value if isinstance(value, str) else ""


_SYMFONY = "X-Message-Stamp-Symfony\\Component\\Messenger\\Stamp\\"

FRAMEWORKS = (
    Framework(
        "MassTransit",
        ("MT-Reason",),
        reason="MT-Reason",
        queue="MT-Fault-InputAddress",
        exception="MT-Fault-ExceptionType",
        type="MT-Fault-MessageType",
        read_queue=_queue_of_address,
    ),
    Framework(
        "NServiceBus",
        ("NServiceBus.FailedQ",),
        queue="NServiceBus.FailedQ",
        exception="NServiceBus.ExceptionInfo.ExceptionType",
        type="NServiceBus.EnclosedMessageTypes",
        read_type=_first_type,
    ),
    Framework(
        "Rebus",
        ("rbs2-source-queue",),
        queue="rbs2-source-queue",
        type="rbs2-msg-type",
        read_type=_first_type,
    ),
    Framework(
        "Spring",
        ("x-exception-stacktrace", "x-exception-message"),
        exchange="x-original-exchange",
        routing_key="x-original-routingKey",
        exception="x-exception-stacktrace",
        type="__TypeId__",
        read_exception=_root_cause,
    ),
    Framework(
        "Symfony",
        (_SYMFONY + "ErrorDetailsStamp",),
        exception=_SYMFONY + "ErrorDetailsStamp",
        type="type",
        read_exception=_exception_of_stamp,
    ),
)
