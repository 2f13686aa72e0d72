"""`brokerctl declare`, `bind` and `unbind`: AMQP's methods of these names, for people.

By the service Messages of a member, with the user's own rights; the topology of a system belongs in
files (`brokerctl plan`, definitions).
"""

from __future__ import annotations

import click

from brokerd.ctl import completing, settings

_ARGUMENT = click.option(
    "--argument",
    "arguments",
    multiple=True,
    metavar="NAME=VALUE",
    help='A value that reads as JSON is that (5 is a number, "5" in quotes text), else text.',
)
_TRANSIENT = click.option("--transient", is_flag=True, help="It does not survive a restart.")
_AUTO_DELETE = click.option("--auto-delete", is_flag=True, help="It goes with its last user.")


@click.group(context_settings={"help_option_names": settings.HELP})
def declare() -> None:
    """Declare a queue or an exchange as an AMQP client does: one that is there must be equal."""


@declare.command(cls=settings.Command)
@click.argument("name")
@click.option(
    "--type",
    "queue_type",
    type=click.Choice(("classic", "quorum")),
    help="[default: the virtual host's]",
)
@_TRANSIENT
@_AUTO_DELETE
@_ARGUMENT
def queue(
    name: str,
    queue_type: str | None,
    transient: bool,
    auto_delete: bool,
    arguments: tuple[str, ...],
) -> None:
    """Declare a queue (option -p): --argument x-max-length=1000."""
    from brokerd.ctl import typed_values
    from brokerd.ctl.client import connect
    from brokerd.rpc.v1 import messages_pb2

    chosen = settings.current()
    values = typed_values.values(arguments, "--argument")
    if queue_type is not None:
        values["x-queue-type"] = messages_pb2.Value(text=queue_type)
    declaration = messages_pb2.QueueDeclaration(
        name=name, durable=not transient, auto_delete=auto_delete, arguments=values
    )
    chosen.say(f"Declaring queue '{name}' in vhost '{chosen.vhost}' ...")
    request = messages_pb2.DeclareQueueRequest(queue=declaration)
    with connect(chosen) as client:
        answer = client.message_call("DeclareQueue", request, chosen.vhost)
    chosen.say(f"It has {answer.messages:,} messages and {answer.consumers:,} consumers.")


@declare.command(cls=settings.Command)
@click.argument("name")
@click.option("--type", "exchange_type", default="direct", show_default=True)
@_TRANSIENT
@_AUTO_DELETE
@click.option("--internal", is_flag=True, help="Clients cannot publish to it.")
@_ARGUMENT
def exchange(
    name: str,
    exchange_type: str,
    transient: bool,
    auto_delete: bool,
    internal: bool,
    arguments: tuple[str, ...],
) -> None:
    """Declare an exchange (option -p)."""
    from brokerd.ctl import typed_values
    from brokerd.ctl.client import connect
    from brokerd.rpc.v1 import messages_pb2

    chosen = settings.current()
    request = messages_pb2.DeclareExchangeRequest(
        name=name,
        type=exchange_type,
        durable=not transient,
        auto_delete=auto_delete,
        internal=internal,
        arguments=typed_values.values(arguments, "--argument"),
    )
    chosen.say(f"Declaring exchange '{name}' in vhost '{chosen.vhost}' ...")
    with connect(chosen) as client:
        client.message_call("DeclareExchange", request, chosen.vhost)


def _binding(verb: str, words: str) -> click.Command:
    def run(
        source: str,
        destination: str,
        routing_key: str,
        to_exchange: bool,
        arguments: tuple[str, ...],
    ) -> None:
        from brokerd.ctl import typed_values
        from brokerd.ctl.client import connect
        from brokerd.rpc.v1 import messages_pb2

        chosen = settings.current()
        binding = messages_pb2.Binding(
            source=source,
            destination=destination,
            to_exchange=to_exchange,
            routing_key=routing_key,
            arguments=typed_values.values(arguments, "--argument"),
        )
        kind = "exchange" if to_exchange else "queue"
        chosen.say(
            f"{words} exchange '{source}' and {kind} '{destination}' in vhost '{chosen.vhost}' "
            f"with routing key '{routing_key}' ..."
        )
        request = getattr(messages_pb2, f"{verb}Request")(binding=binding)
        with connect(chosen) as client:
            client.message_call(verb, request, chosen.vhost)

    source = click.Argument(["source"], shell_complete=completing.exchange_names)
    destination = click.Argument(["destination"], shell_complete=completing.queue_names)
    key = click.Option(["-k", "--routing-key"], default="", help="Its key, or weight.")
    to_exchange = click.Option(
        ["--to-exchange"], is_flag=True, help="The destination is an exchange, not a queue."
    )
    arguments = click.Option(
        ["--argument", "arguments"],
        multiple=True,
        metavar="NAME=VALUE",
        help='Of a headers exchange: x-match=all, format="pdf". Values as of declare.',
    )
    purpose = (
        "Bind a queue, or an exchange, to an exchange (option -p)."
        if verb == "Bind"
        else "Take a binding back: key and arguments must be those of the binding (option -p)."
    )
    return settings.Command(
        verb.lower(),
        callback=run,
        params=[source, destination, key, to_exchange, arguments],
        help=purpose,
    )


bind = _binding("Bind", "Binding")
unbind = _binding("Unbind", "Unbinding")
