"""A function's signature becomes a schema, and a call of it with checked arguments."""

import functools
from typing import Annotated, Any, Dict, List, Optional

import pytest

from syncagent.boundary.tools.base import CallContext
from syncagent.boundary.tools.schema import Signature
from syncagent.cancel import CancellationToken
from syncagent.errors import ToolError


def search(
    query: str,
    limit: int = 10,
    paths: Annotated[Optional[List[str]], "where to look"] = None,
    *,
    token: CancellationToken,
    where: CallContext,
) -> str:
    """Search files.

    Args:
        query: What to look for.
        limit: How many at most.
        paths: not this one
        token: not for the model
    """
    return f"{query} {limit} {paths} {token.cancelled} {where.emit is print}"


@pytest.fixture
def context() -> CallContext:
    return CallContext(token=CancellationToken(), emit=print, processes=None)  # type: ignore[arg-type]


def test_the_schema_shows_what_the_model_gives() -> None:
    signature = Signature.of(search)
    assert (signature.name, signature.description) == ("search", "Search files.")
    assert signature.parameters == {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "What to look for."},
            "limit": {"type": "integer", "description": "How many at most.", "default": 10},
            "paths": {
                "anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}],
                "description": "where to look",
                "default": None,
            },
        },
        "required": ["query"],
        "additionalProperties": False,
    }


def test_the_call_fills_in_token_and_context(context: CallContext) -> None:
    signature = Signature.of(search)
    values = signature.structure({"query": "x", "paths": ["a"]})
    assert signature.call(values, context) == "x 10 ['a'] False True"


@pytest.mark.parametrize(
    "values, text",
    [
        ({}, "argument 'query' is missing"),
        ({"query": 1}, "argument 'query' must be a string, not 1"),
        ({"query": "x", "limit": "3"}, "argument 'limit' must be an integer, not '3'"),
        ({"query": "x", "paths": ["a", 1]}, "argument 'paths[1]' must be a string, not 1"),
        ({"query": "x", "token": 1}, "there is no argument 'token'; it takes 'query', 'limit', 'paths'"),
        ({"query": "x", "where": 1}, "there is no argument 'where'"),
    ],
)
def test_a_misfit_names_tool_and_argument(values: Dict[str, Any], text: str) -> None:
    with pytest.raises(ToolError) as caught:
        Signature.of(search).structure(values)
    assert caught.value.code == "BAD_ARGUMENTS"
    assert str(caught.value).startswith("bad arguments for tool 'search': " + text)


def test_a_default_of_none_takes_null(context: CallContext) -> None:
    def tool(when: str = None) -> str:  # type: ignore[assignment]
        return repr(when)

    signature = Signature.of(tool)
    assert signature.call(signature.structure({"when": None}), context) == "None"
    assert signature.call(signature.structure({}), context) == "None"


def test_extra_names_go_to_a_function_that_takes_them(context: CallContext) -> None:
    def tool(a: int, **rest: int) -> str:
        return repr((a, rest))

    signature = Signature.of(tool)
    assert signature.parameters["additionalProperties"] == {"type": "integer"}
    values = signature.structure({"a": 1, "b": 2, "rest": 3})
    assert signature.call(values, context) == "(1, {'b': 2, 'rest': 3})"
    with pytest.raises(ToolError, match="'b' must be an integer"):
        signature.structure({"a": 1, "b": "x"})


def test_positional_only_parameters_are_passed_by_position(context: CallContext) -> None:
    def tool(a: int, b: int = 2, /, c: int = 3) -> str:
        return repr((a, b, c))

    signature = Signature.of(tool)
    assert signature.call(signature.structure({"a": 1, "c": 9}), context) == "(1, 2, 9)"
    assert signature.call(signature.structure({"b": 8, "a": 1}), context) == "(1, 8, 3)"


def test_a_positional_only_parameter_that_is_left_out_before_a_given_one_has_its_default(
    context: CallContext,
) -> None:
    def tool(a: int = 1, token: Any = None, b: int = 2, /) -> str:
        return repr((a, token is context.token, b))

    signature = Signature.of(tool)
    assert signature.call(signature.structure({"b": 5}), context) == "(1, True, 5)"


def test_an_optional_context_and_one_under_any_name_are_filled_in(context: CallContext) -> None:
    def tool(it: Optional[CallContext] = None, *, other: "CallContext") -> bool:
        return it is other is context

    signature = Signature.of(tool)
    assert signature.parameters["properties"] == {}
    assert signature.call({}, context) is True


def test_parameters_without_annotation_take_anything(context: CallContext) -> None:
    signature = Signature.of(lambda x, y=1: (x, y), name="it")
    assert signature.parameters["properties"] == {"x": {}, "y": {"default": 1}}
    assert signature.call(signature.structure({"x": [1]}), context) == ([1], 1)


class Holder:
    def method(self, n: int) -> int:
        """A method."""
        return n

    @staticmethod
    def static(n: int) -> int:
        return n

    def __call__(self, n: int) -> int:
        return n


def test_bound_methods_objects_and_partials_are_callable(context: CallContext) -> None:
    holder = Holder()
    cases = (holder.method, Holder.static, holder, functools.partial(Holder.static))
    for function in cases:
        name = getattr(function, "__name__", "it")
        signature = Signature.of(function, name=name)
        if "n" in signature.parameters["properties"]:
            assert signature.call(signature.structure({"n": 3}), context) == 3
    assert Signature.of(holder.method).description == "A method."


def wrapped(function: Any) -> Any:
    @functools.wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return inner


def test_a_wrapped_function_shows_its_own_signature(context: CallContext) -> None:
    signature = Signature.of(wrapped(search))
    assert list(signature.parameters["properties"]) == ["query", "limit", "paths"]


async def coroutine() -> None:
    pass


class Asynchronous:
    async def __call__(self) -> None:
        pass


async def async_generator() -> Any:
    yield 1


def starred(*names: str) -> None:
    pass


def starred_late(name: str, *names: str) -> None:
    pass


def token_of_the_model(token: Optional[str] = None) -> None:
    pass


def token_by_another_name(stop: CancellationToken) -> None:
    pass


def unspeakable(data: bytes) -> None:
    pass


def unknown(x: "NoSuchName") -> None:  # type: ignore[name-defined]  # noqa: F821
    pass


@pytest.mark.parametrize(
    "function, text",
    [
        (coroutine, "'coroutine' is async"),
        (async_generator, "'async_generator' is async"),
        (functools.partial(coroutine), "'given' is async"),
        (Asynchronous(), "'given' is async"),
        (starred, r"takes \*names"),
        (starred_late, r"takes \*names"),
        (token_of_the_model, "the parameter 'token' is the call's own"),
        (token_by_another_name, "gets the token is named token, not 'stop'"),
        (unspeakable, "parameter 'data' of tool 'unspeakable': <class 'bytes'> has no JSON schema"),
        (unknown, "parameter 'x' of tool 'unknown': can't resolve its annotation 'NoSuchName'"),
        (Holder.method, "'method' is a method"),
    ],
)
def test_a_function_that_no_model_can_call_is_refused_with_the_reason(function: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        Signature.of(function, name=getattr(function, "__name__", "given"))


def test_a_function_without_a_name_needs_one() -> None:
    with pytest.raises(TypeError, match="give the tool a name"):
        Signature.of(functools.partial(pow, 2))


@pytest.mark.filterwarnings("error")
def test_a_coroutine_that_a_wrapper_gives_back_is_closed_and_an_error(context: CallContext) -> None:
    with pytest.raises(TypeError, match="a coroutine came back: a tool is a plain function"):
        Signature.of(wrapped(coroutine)).call({}, context)
