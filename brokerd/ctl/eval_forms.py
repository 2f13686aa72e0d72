"""`brokerctl eval`: the handful of Erlang expressions that scripts around RabbitMQ send.

There is no Erlang here.  Each form is read as a term and turned into a call of the Admin service;
anything else is refused with the list of what is understood.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from brokerd.ctl import errors, settings, terms
from brokerd.ctl.terms import Atom, Call

if TYPE_CHECKING:
    from brokerd.ctl.client import AdminClient

FORMS = (
    "rabbit_alarm:set_alarm({{resource_limit, memory, node()}, []}).   (also disk)",
    "rabbit_alarm:clear_alarm({resource_limit, memory, node()}).   (also disk)",
    "application:set_env(rabbit, channel_max, 100).   (also frame_max, heartbeat)",
    'application:set_env(rabbit, loopback_users, [<<"guest">>]).',
    "application:get_env(rabbit, channel_max).",
    "node().",
)
RABBIT = Atom("rabbit")


def _refused(why: str) -> errors.CtlError:
    listed = "\n".join(f"  {form}" for form in FORMS)
    return errors.CtlError(
        f"{why}\nThere is no Erlang in brokerd. These forms are understood:\n{listed}",
        errors.EXIT_UNAVAILABLE,
    )


def _resource(limit: Any) -> str:
    """Return memory or disk of {resource_limit, Resource, node()}."""
    if isinstance(limit, tuple) and len(limit) == 3 and limit[0] == Atom("resource_limit"):
        kind, node = limit[1:]
        is_node = isinstance(node, Atom) or node == Call("", "node", [])
        if isinstance(kind, Atom) and kind.name in ("memory", "disk") and is_node:
            return kind.name
    raise _refused("the alarm is not {resource_limit, memory, node()} or {…, disk, …}")


def _alarm(client: AdminClient, resource: str, on: bool) -> str:
    from brokerd.rpc.v1 import admin_pb2

    client.call("SetAlarm", admin_pb2.SetAlarmRequest(resource=resource, on=on))
    return "ok"


def _set_alarm(client: AdminClient, arguments: list[Any]) -> str:
    (alarm,) = arguments
    if not isinstance(alarm, tuple) or len(alarm) != 2:
        raise _refused("the alarm is not {{resource_limit, memory, node()}, []}")
    return _alarm(client, _resource(alarm[0]), True)


def _clear_alarm(client: AdminClient, arguments: list[Any]) -> str:
    (alarm,) = arguments
    return _alarm(client, _resource(alarm), False)


def _variable(application: Any, name: Any) -> str:
    if application != RABBIT or not isinstance(name, Atom):
        raise _refused("only variables of the application rabbit are known")
    return name.name


def _set_env(client: AdminClient, arguments: list[Any]) -> str:
    from brokerd.rpc.v1 import admin_pb2

    name = _variable(arguments[0], arguments[1])
    value = arguments[2]
    if isinstance(value, Atom) and value.name == "infinity":
        value = 0
    try:
        request = admin_pb2.SetVariableRequest(name=name, value=json.dumps(value))
    except TypeError:
        raise _refused(f"{name}: that is no value of it") from None
    try:
        client.call("SetVariable", request)
    except errors.CtlError as error:
        raise _refused(str(error)) if error.exit_code == errors.EXIT_DATA else error from None
    return "ok"


def _get_env(client: AdminClient, arguments: list[Any]) -> str:
    name = _variable(*arguments[:2])
    found = {row["name"]: row["value"] for row in client.live_rows("variables")}
    if name not in found:
        return terms.term(arguments[2]) if len(arguments) == 3 else "undefined"
    value = terms.term(found[name])
    return value if len(arguments) == 3 else f"{{ok,{value}}}"


def _node(client: AdminClient, _: list[Any]) -> str:
    from brokerd.ctl import members

    return str(members.info(client).node)


#: By (module, function, number of arguments).
_CALLS: dict[tuple[str, str, int], Callable[[AdminClient, list[Any]], str]] = {
    ("rabbit_alarm", "set_alarm", 1): _set_alarm,
    ("rabbit_alarm", "clear_alarm", 1): _clear_alarm,
    ("application", "set_env", 3): _set_env,
    ("application", "get_env", 2): _get_env,
    ("application", "get_env", 3): _get_env,
    ("", "node", 0): _node,
}


def evaluate(client: AdminClient, call: Any) -> str:
    """Run a form and return what Erlang would answer."""
    if not isinstance(call, Call):
        raise _refused("this is no call of a function")
    run = _CALLS.get((call.module, call.function, len(call.arguments)))
    if run is None:
        name = f"{call.module}:{call.function}" if call.module else call.function
        raise _refused(f"{name}/{len(call.arguments)} is not known here.")
    return run(client, call.arguments)


@click.command("eval", cls=settings.Command)
@click.argument("expression", nargs=-1)
def eval_expression(expression: tuple[str, ...]) -> None:
    """Evaluate one of the Erlang expressions that scripts around RabbitMQ use."""
    from brokerd.ctl.client import connect

    text = " ".join(expression)
    if not expression:
        # As with rabbitmqctl: of standard input, at most what any form needs.
        text = "" if sys.stdin.isatty() else sys.stdin.read(terms.TEXT_MAX)
        if not text.strip():
            raise errors.CtlError(
                "Expression to evaluate is not provided via argument or stdin", errors.EXIT_DATA
            )
    if not text.strip():
        raise click.UsageError("Expression must not be blank")
    try:
        call = terms.parse(text)
    except terms.BadTerm as error:
        raise click.UsageError(str(error)) from error
    with connect(settings.current()) as client:
        click.echo(evaluate(client, call))
