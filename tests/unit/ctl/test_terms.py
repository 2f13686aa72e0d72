"""Erlang terms: printed as rabbitmqctl prints them, read as scripts write them."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.ctl import terms
from brokerd.ctl.terms import Atom, Call

#: Listed by rabbitmqctl 3.10.8 for client properties of these values.
VALUES: dict[str, Any] = {
    "text": 'a "b"\t\n\\',
    "n": 1,
    "long": 2**40,
    "on": True,
    "half": 0.5,
    "none": None,
    "list": [1, "a", False],
    "table": {"deep": {"er": []}},
}


def test_field_tables_are_printed_as_lists_of_pairs() -> None:
    assert terms.field_table(terms.table(VALUES).entries) == (
        '[{"text","a \\"b\\"\\t\\n\\\\"},{"n",1},{"long",1099511627776},{"on",true},{"half",0.5},'
        '{"none",undefined},{"list",[1,"a",false]},{"table",[{"deep",[{"er",[]}]}]}]'
    )
    assert terms.field_table([]) == "[]"
    binary = {"key": "b", "type": "binary", "value": "/wE="}
    decimal = {"key": "d", "type": "decimal", "value": [2, 314]}
    assert terms.field_table([binary, decimal]) == '[{"b",<<255,1>>},{"d",{2,314}}]'


def test_json_of_field_tables_names_the_types() -> None:
    assert terms.json_table(terms.table(VALUES).entries) == [
        ["text", "longstr", 'a "b"\t\n\\'],
        ["n", "signedint", 1],
        ["long", "long", 2**40],
        ["on", "bool", True],
        ["half", "double", 0.5],
        ["none", "void", None],
        ["list", "array", [["signedint", 1], ["longstr", "a"], ["bool", False]]],
        ["table", "table", [["deep", "table", [["er", "array", []]]]]],
    ]


def test_text_that_would_steer_a_terminal_is_escaped() -> None:
    assert terms.quoted("\x1b[2J") == '"\\x{1B}[2J"'


@pytest.mark.parametrize(
    ("address", "numbers"),
    [
        ("127.0.0.1", [127, 0, 0, 1]),
        ("::1", [0, 0, 0, 0, 0, 0, 0, 1]),
        ("2001:db8::ff00:1", [8193, 3512, 0, 0, 0, 0, 65280, 1]),
        ("?", "?"),
    ],
)
def test_addresses_are_numbers_in_json(address: str, numbers: Any) -> None:
    assert terms.Address(address).numbers() == numbers


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "undefined"),
        (True, "true"),
        ([1, "a"], '[1,<<"a">>]'),
        ((0, 9, 1), "{0,9,1}"),
        ({"a": 1}, '#{<<"a">> => 1}'),
        (Atom("running"), "running"),
        (terms.table({"a": 1}), '[{"a",1}]'),
    ],
)
def test_terms_are_printed(value: Any, text: str) -> None:
    assert terms.term(value) == text


NODE = Call("", "node", [])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (
            "rabbit_alarm:set_alarm({{resource_limit, memory, node()}, []}).",
            Call(
                "rabbit_alarm",
                "set_alarm",
                [((Atom("resource_limit"), Atom("memory"), NODE), [])],
            ),
        ),
        ("  node ( ) . ", NODE),
        ('a:b(<<"x\\"y">>, "s", <<>>, -3, 1.5, \'Q a\').', None),
        ("{true, [false, {}]}.", (True, [False, ()])),
    ],
)
def test_expressions_are_read(text: str, value: Any) -> None:
    if value is None:
        value = Call("a", "b", ['x"y', "s", "", -3, 1.5, Atom("Q a")])
    assert terms.parse(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "node()",
        "node(). node().",
        "{1, }.",
        "{1 2}.",
        "a:1().",
        "a:b.",
        "#{a => 1}.",
        "]",
        "[" * 100 + "]" * 100 + ".",
        "9" * 50 + ".",
        "x" * (terms.TEXT_MAX + 1),
    ],
)
def test_what_is_no_expression_is_refused(text: str) -> None:
    with pytest.raises(terms.BadTerm):
        terms.parse(text)
