"""A tool takes a model's text and gives blocks; its body's exceptions are its own."""

from typing import Any, Dict, List

import pytest
from processes import run_host

from syncagent.boundary.tools.base import CallContext, Tool, ToolOutput, tool
from syncagent.cancel import CancellationToken, Cancelled
from syncagent.errors import ToolError


@pytest.fixture
def context() -> CallContext:
    return CallContext(token=CancellationToken(), emit=print, processes=None)  # type: ignore[arg-type]


@tool
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


def test_a_decorated_function_is_a_tool_and_can_still_be_called() -> None:
    assert isinstance(add, Tool)
    assert add(2, b=3) == 5
    assert (add.effect, add.exclusive, add.timeout) == ("write", False, None)
    assert add.spec() == {"name": "add", "description": "Add two numbers.", "parameters": add.parameters}
    assert repr(add) == "<Tool add effect=write>"


def test_options_are_kept() -> None:
    @tool(name="other", description="Told.", effect="read", exclusive=True, timeout=2.5)
    def made() -> None:
        """Not told."""

    assert (made.name, made.description) == ("other", "Told.")
    assert (made.effect, made.exclusive, made.timeout) == ("read", True, 2.5)


def test_text_goes_in_and_blocks_come_out(context: CallContext) -> None:
    output = add.invoke(add.parse('{"a": 2}'), context)
    assert output == ToolOutput(content=[{"type": "text", "text": "3"}])
    assert (output.text, output.error, output.message) == ("3", None, "")


@pytest.mark.parametrize("arguments", ["", "  ", "null", "{}", None])
def test_a_tool_without_arguments_runs_for_each_form_of_none(context: CallContext, arguments: Any) -> None:
    runs: List[int] = []

    @tool
    def ping() -> str:
        runs.append(1)
        return "pong"

    assert ping.invoke(ping.parse(arguments), context).text == "pong"
    assert runs == [1]


@pytest.mark.parametrize(
    "arguments",
    ['{"city": "San Fra', "[1]", '"x"', "NaN", '{"a":1}{"b":2}', "[" * 100_000, '{"a":' * 100_000],
)
def test_bad_arguments_are_an_error_that_names_the_tool(arguments: str) -> None:
    with pytest.raises(ToolError, match="'add'") as caught:
        add.parse(arguments)
    assert caught.value.code == "BAD_ARGUMENTS"


def test_an_output_is_passed_on_but_for_what_cannot_be_encoded(context: CallContext) -> None:
    @tool
    def failing() -> ToolOutput:
        content: List[Dict[str, Any]] = [{"type": "text", "text": "a\ud800"}, {"type": "image", "data": "x"}]
        return ToolOutput(content=content, error="MY_CODE", message="b\udfff")

    output = failing.invoke({}, context)
    assert output.content == [{"type": "text", "text": "a\ufffd"}, {"type": "image", "data": "x"}]
    assert (output.error, output.message, output.text) == ("MY_CODE", "b\ufffd", "a\ufffd")


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt, RecursionError, GeneratorExit])
def test_exceptions_of_the_body_pass_through(context: CallContext, error: Any) -> None:
    @tool
    def failing() -> None:
        raise error("mine")

    with pytest.raises(error, match="mine"):
        failing.invoke({}, context)


def test_a_generator_stops_at_a_cancel(context: CallContext) -> None:
    @tool
    def counting() -> Any:
        for number in range(1000):
            if number == 3:
                context.token.cancel()
            yield number

    with pytest.raises(Cancelled):
        counting.invoke({}, context)


@pytest.mark.parametrize("name", ["", "a b", "ä", "x" * 65, "a.b", "a\n"])
def test_a_name_that_providers_refuse_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="a tool's name"):
        tool(name=name)(lambda: None)


def test_unfit_options_are_refused() -> None:
    for options, text in (
        ({"effect": "maybe"}, "effect"),
        ({"timeout": 0}, "time-out"),
        ({"timeout": float("nan")}, "time-out"),
    ):
        with pytest.raises(ValueError, match=text):
            tool(name="it", **options)(lambda: None)  # type: ignore[call-overload]


@pytest.mark.parametrize("value", [3, "bash", [len]])
def test_what_is_no_function_is_refused_by_its_own_name(value: object) -> None:
    with pytest.raises(TypeError, match="a tool is made of a function, not of"):
        tool()(value)  # type: ignore[arg-type]


def test_a_tool_can_be_made_from_no_function(context: CallContext) -> None:
    made = Tool(
        name="echo",
        description="Echo.",
        parameters={"type": "object", "properties": {}},
        body=lambda values, context: values,
    )
    assert made.invoke(made.parse('{"any": [1]}'), context).text == '{"any": [1]}'
    with pytest.raises(TypeError, match="made from no function"):
        made()


def test_tools_are_equal_only_to_themselves_and_immutable() -> None:
    assert add == add and add != tool(name="add")(add.function)  # type: ignore[arg-type]
    assert len({add}) == 1
    with pytest.raises(AttributeError):
        add.name = "x"  # type: ignore[misc]


def test_the_module_needs_no_heavy_import() -> None:
    program = """
import sys
from syncagent.boundary.tools.base import tool
@tool
def f(x: int, y: "list[str]" = ()): ""
f.parse('{"x": 1}')
print([name for name in ("cattrs", "requests", "sqlite_utils", "ctypes") if name in sys.modules])
"""
    assert run_host(program) == "[]\n"
