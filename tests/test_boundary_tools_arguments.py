"""What a model sent as arguments is a JSON object or an error that names the tool; it never crashes."""

import sys
from typing import Optional

import pytest

from syncagent.boundary.tools.arguments import MAX_DEPTH, decode
from syncagent.errors import SyncagentError, ToolError


@pytest.mark.parametrize("text", [None, "", "  ", "\n\t", "null", " null ", "{}", " {} "])
def test_no_arguments_are_an_empty_object(text: Optional[str]) -> None:
    assert decode(text, tool="t") == {}


@pytest.mark.parametrize(
    "text, why",
    [
        ('{"city": "San Fra', "not valid JSON"),
        ("[1]", "must be a JSON object, not an array"),
        ('"x"', "must be a JSON object, not a string"),
        ("7", "must be a JSON object, not a number"),
        ("1.5", "must be a JSON object, not a number"),
        ("true", "must be a JSON object, not a boolean"),
        ("NaN", "NaN is no JSON value"),
        ('{"a": -Infinity}', "-Infinity is no JSON value"),
        ('{"a": 1e999}', "out of range"),
        ('{"a":1}{"b":2}', "Extra data at line 1 column 8"),
        ("{'a': 1}", "not valid JSON"),
        ('{"a": 1,}', "not valid JSON"),
        ('{"a": "\x01"}', "not valid JSON"),
        ("[" * 100_000, "nest deeper"),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, "nest deeper"),
        ("[" * 100_000 + "]" * 100_000, "nest deeper"),
        ('{"a": "\\"[[[", "b": ' + "[" * 100_000, "nest deeper"),
        ("\ufeff{}", "not valid JSON"),
        ('{"a": ' + "1" * 100_000 + "}", "not valid JSON"),
    ],
)
def test_everything_else_is_an_error_that_names_the_tool(text: str, why: str) -> None:
    with pytest.raises(ToolError) as caught:
        decode(text, tool="weather")
    assert caught.value.code == "BAD_ARGUMENTS"
    assert isinstance(caught.value, SyncagentError)
    assert "'weather'" in str(caught.value)
    assert why in str(caught.value)
    assert len(str(caught.value)) < 300


def test_brackets_in_texts_do_not_nest() -> None:
    assert decode('{"a": "' + "[{" * 1000 + '"}', tool="t") == {"a": "[{" * 1000}
    assert decode('{"a": "\\\\\\"' + "[{" * 1000 + '"}', tool="t") == {"a": '\\"' + "[{" * 1000}


def test_the_deepest_that_is_taken_is_taken_with_a_short_stack() -> None:
    text = '{"a":' + "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1) + "}"
    assert decode(text, tool="t")

    def down(depth: int) -> None:
        if depth:
            down(depth - 1)
        else:
            decode(text, tool="t")

    frame, depth = sys._getframe(), 0
    while frame is not None:
        frame, depth = frame.f_back, depth + 1  # type: ignore[assignment]
    down(max(0, sys.getrecursionlimit() - depth - 2 * MAX_DEPTH - 50))


def test_a_wide_value_is_fast_enough() -> None:
    assert len(decode('{"a": [' + ",".join(["[]"] * 200_000) + "]}", tool="t")["a"]) == 200_000
