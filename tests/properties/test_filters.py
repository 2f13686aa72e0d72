"""Filters against an evaluator that is written to be read: random trees, random messages."""

from __future__ import annotations

import operator
from typing import TypeAlias

from hypothesis import given
from hypothesis import strategies as st

from brokerd.amqp.properties import BasicProperties
from brokerd.core.filters.errors import FilterError
from brokerd.core.filters.message_filter import compile_filter
from tests.unit.core.filters.views import View, table

#: ("header", name), ("value", literal), ("size", tree), ("sum", sign, tree, tree),
#: (comparison, tree, tree), ("in", tree, literals), ("has", name), ("!", tree), ("&&", trees), …
Tree: TypeAlias = "tuple[object, ...]"

NAMES = ("a", "b", "c")
SCALARS = st.one_of(
    st.integers(-3, 3),
    st.sampled_from([0.0, 0.5, 1.0, float("nan"), float("inf")]),
    st.sampled_from(["", "a", "ab", "1", "\udc80"]),
    st.booleans(),
)
HEADERS = st.dictionaries(
    st.sampled_from(NAMES),
    st.one_of(SCALARS, st.none(), st.lists(SCALARS, max_size=3), st.binary()),
)
LITERALS = st.one_of(
    st.integers(-3, 3), st.sampled_from([0.5, 1.0]), st.sampled_from(["", "a", "1"]), st.booleans()
)
COMPARISONS = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
TEXTS = {"startsWith": str.startswith, "endsWith": str.endswith, "contains": str.__contains__}

header = st.tuples(st.just("header"), st.sampled_from(NAMES))
values: st.SearchStrategy[Tree] = st.one_of(
    header,
    st.tuples(st.just("value"), LITERALS),
    st.tuples(st.just("size"), header),
    st.tuples(st.just("sum"), st.sampled_from([1, -1]), header, header),
)
leaves: st.SearchStrategy[Tree] = st.one_of(
    st.tuples(st.sampled_from(sorted(COMPARISONS)), values, values),
    st.tuples(st.just("in"), header, st.lists(LITERALS, min_size=1, max_size=3)),
    st.tuples(st.just("in list"), header, header),
    st.tuples(st.just("has"), st.sampled_from(NAMES)),
    st.tuples(st.sampled_from(sorted(TEXTS)), header, header),
    header,
)
conditions: st.SearchStrategy[Tree] = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.tuples(st.just("!"), inner),
        st.tuples(st.sampled_from(["&&", "||"]), st.lists(inner, min_size=2, max_size=4)),
    ),
    max_leaves=8,
)


def written(tree: Tree) -> str:
    """Return a tree as the text of a filter."""
    kind, *parts = tree
    if kind == "header":
        return f"headers.{parts[0]}"
    if kind == "value":
        return literal(parts[0])
    if kind == "size":
        return f"size({written(parts[0])})"  # type: ignore[arg-type]
    if kind == "sum":
        left, right = written(parts[1]), written(parts[2])  # type: ignore[arg-type]
        return f"({left} {'+' if parts[0] == 1 else '-'} {right})"
    if kind == "has":
        return f'has(headers["{parts[0]}"])'
    if kind == "in":
        return f"{written(parts[0])} in [{', '.join(map(literal, parts[1]))}]"  # type: ignore
    if kind == "in list":
        return f"{written(parts[0])} in {written(parts[1])}"  # type: ignore[arg-type]
    if kind == "!":
        return f"!({written(parts[0])})"  # type: ignore[arg-type]
    if kind in ("&&", "||"):
        return f" {kind} ".join(f"({written(part)})" for part in parts[0])  # type: ignore
    if kind in TEXTS:
        return f"{written(parts[0])}.{kind}({written(parts[1])})"  # type: ignore[arg-type]
    return f"{written(parts[0])} {kind} {written(parts[1])}"  # type: ignore[arg-type]


def literal(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value).lower()


def kind_of(value: object) -> str | None:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, str):
        return "text"
    is_number = isinstance(value, int | float) and value == value
    return "number" if is_number else None


def valued(tree: Tree, headers: dict[str, object]) -> object:
    """Return what a tree is for a message by the reference page; None: absent."""
    kind, *parts = tree
    if kind == "value":
        return parts[0]
    if kind == "header":
        return headers.get(str(parts[0]))
    if kind == "has":
        return headers.get(str(parts[0])) is not None
    if kind in ("&&", "||"):
        decisive = kind == "||"
        said = [condition(part, headers) for part in parts[0]]  # type: ignore[attr-defined]
        if decisive in said:
            return decisive
        return None if None in said else not decisive
    if kind == "!":
        value = condition(parts[0], headers)  # type: ignore[arg-type]
        return None if value is None else not value
    left = valued(parts[1] if kind == "sum" else parts[0], headers)  # type: ignore[arg-type]
    if kind == "size":
        return len(left) if isinstance(left, str | bytes | list) else None
    if kind == "in":
        same = [item for item in parts[1] if kind_of(item) == kind_of(left)]  # type: ignore
        return left in same if same else None
    right = valued(parts[2] if kind == "sum" else parts[1], headers)  # type: ignore[arg-type]
    if kind == "in list":
        if not isinstance(right, list) or kind_of(left) is None:
            return None
        return any(kind_of(item) == kind_of(left) and item == left for item in right)
    if kind_of(left) is None or kind_of(left) != kind_of(right):
        return None
    if kind == "sum":
        if kind_of(left) != "number":
            return None
        total = left + right if parts[0] == 1 else left - right  # type: ignore[operator]
        return total if abs(total) < float("inf") else None
    if kind in TEXTS:
        return TEXTS[str(kind)](left, right) if kind_of(left) == "text" else None  # type: ignore
    if kind_of(left) == "bool" and kind not in ("==", "!="):
        return None
    return COMPARISONS[str(kind)](left, right)


def condition(tree: Tree, headers: dict[str, object]) -> object:
    value = valued(tree, headers)
    return value if isinstance(value, bool) else None


@given(conditions, st.lists(HEADERS, min_size=1, max_size=5))
def test_filter_says_what_the_reference_says(tree: Tree, messages: list[dict[str, object]]) -> None:
    text = written(tree)
    error = error_of(text)
    if error is not None:
        # Of literals it is seen that they do not fit; there is nothing else wrong in these trees.
        assert "cannot be compared" in error.message
        return
    yes, no = compile_filter(text), compile_filter(f"!({text})")
    for headers in messages:
        view = View(properties=BasicProperties(headers=table(headers)))
        expected = condition(tree, headers)
        assert yes.matches(view) is (expected is True)
        assert no.matches(view) is (expected is False)


@given(st.text(max_size=60) | st.text("headrs.x[]()!&|<=>'\" 01+-,in", max_size=60))
def test_any_text_is_compiled_or_refused_with_a_place(text: str) -> None:
    error = error_of(text)
    if error is None:
        found = compile_filter(text)
        found.matches(View())
        assert "\n" not in found.without_literals()
    else:
        assert 0 <= error.position <= len(text)
        assert error.message
        assert error.excerpt().count("\n") == 1


def error_of(text: str) -> FilterError | None:
    try:
        compile_filter(text)
    except FilterError as error:
        return error
    return None
