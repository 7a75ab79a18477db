"""What goes into a parcel by name and what by value, and how it is told what can't go at all."""

import functools
import pickle
import sys
import threading
from io import BytesIO
from pathlib import Path
from typing import Any, Callable, Dict, Tuple

import pytest

from syncagent.boundary.tools import parcel
from syncagent.boundary.tools.base import Tool, tool
from syncagent.errors import ToolError

LOCK = threading.Lock()


def job(function: Callable[..., Any], **values: Any) -> Dict[str, Any]:
    return {"function": function, "values": values, "hidden": {}, "positional": []}


def sent(function: Callable[..., Any], **values: Any) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    stream = BytesIO(parcel.pack(job(function, **values), tool="it"))
    return pickle.load(stream), pickle.load(stream)


@tool
def top(value: int) -> int:
    """At the top of a module, under the name of which there is a tool."""
    return value + 1


def uses_the_lock() -> None:
    with LOCK:
        pass


def test_a_parcel_says_how_the_parent_is_set_up() -> None:
    setup, _ = sent(len)
    assert setup == {"tag": sys.implementation.cache_tag, "path": sys.path, "argv": sys.argv}


def test_an_entry_of_the_path_that_no_import_looks_at_stays_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["/a", LOCK, Path("/b"), "/c"])
    assert pickle.loads(parcel.pack(job(len), tool="it"))["path"] == ["/a", "/c"]


def test_a_parent_without_arguments_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sys, "argv")
    assert sent(len)[0]["argv"] == [""]


def test_what_an_import_finds_goes_by_name_though_a_tool_has_its_name() -> None:
    assert top.function is not None
    _, got = sent(top.function, other=top, plain=uses_the_lock)
    assert got["function"] is top.function
    assert got["values"] == {"other": top, "plain": uses_the_lock}
    assert b"value + 1" not in parcel.pack(job(top.function), tool="it")


def test_everything_else_goes_by_value() -> None:
    local = 3

    @tool
    def inner(value: int) -> int:
        return value + local

    assert inner.function is not None
    _, got = sent(inner.function, other=inner)
    assert got["function"] is not inner.function and got["function"](1) == 4
    assert isinstance(got["values"]["other"], Tool) and got["values"]["other"](1) == 4


def test_a_tool_that_refers_to_itself_can_be_sent() -> None:
    names: Dict[str, Any] = {"tool": tool, "__name__": "a_cell"}
    exec("@tool\ndef f(n: int) -> int:\n    return n and f(n - 1) + 1\n", names)
    _, got = sent(names["f"].function)
    assert got["function"](4) == 4


def test_a_tool_that_no_import_finds_by_its_name_goes_by_value() -> None:
    other = tool(name="other")(top.function)  # type: ignore[arg-type]
    _, got = sent(len, other=other)
    assert got["values"]["other"] is not other and got["values"]["other"].name == "other"


def test_what_the_user_wants_by_value_goes_by_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import cloudpickle

    text = "from syncagent import tool\n@tool\ndef work(): return 'by value'\n"
    (tmp_path / "valued_tools.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    import valued_tools

    assert sent(valued_tools.work.function)[1]["function"] is valued_tools.work.function
    cloudpickle.register_pickle_by_value(valued_tools)
    try:
        got = sent(valued_tools.work.function)[1]["function"]
    finally:
        cloudpickle.unregister_pickle_by_value(valued_tools)
    assert got is not valued_tools.work.function and got() == "by value"


# -- what can't be sent --------------------------------------------------------------------------------


def closing_over(value: Any) -> Callable[[], Any]:
    def inner() -> Any:
        return value

    return inner


def by_value(text: str, **names: Any) -> Callable[..., Any]:
    """The function `f` of a notebook's cell."""
    names["__name__"] = "a_cell"
    exec(text, names)
    made: Callable[..., Any] = names["f"]
    return made


class Holder:
    def __init__(self) -> None:
        self.lock = LOCK

    def method(self) -> None:
        pass

    def __call__(self) -> None:
        pass


@pytest.mark.parametrize(
    "function, where",
    [
        (closing_over(LOCK), "the variable 'value'"),
        (closing_over({"a": [1, LOCK]}), "the item 1 of the item 'a' of the variable 'value'"),
        (by_value("def f(x=L): pass", L=LOCK), "a default"),
        (by_value("def f(*, x=L): pass", L=LOCK), "the default of 'x'"),
        (Holder().method, "the attribute 'lock' of the object of its method"),
        (Holder(), "the attribute 'lock'"),
        (functools.partial(len, LOCK), "an argument of its partial"),
        (
            functools.partial(closing_over(LOCK)),
            "the variable 'value' of the function of its partial",
        ),
    ],
)
def test_what_is_bound_to_a_function_is_told_when_the_tool_is_made(function: Any, where: str) -> None:
    with pytest.raises(TypeError) as caught:
        parcel.check_bound(function, tool="it")
    said = str(caught.value)
    assert said == f"tool 'it' can't be isolated: {where}, of type lock, can't be pickled ({lock_text()})"
    with pytest.raises(TypeError, match="tool 'it' can't be isolated"):
        tool(name="it", isolate=True)(function)


def lock_text() -> str:
    try:
        pickle.dumps(LOCK)
    except TypeError as exc:
        return str(exc)
    raise AssertionError


@pytest.mark.parametrize(
    "function, where",
    [
        (by_value("def f(): return L", L=LOCK), "the global 'L'"),
        (by_value("def g(): return L\ndef f(): return g()", L=LOCK), "the global 'L' of the global 'g'"),
        (by_value("def f(): return [L for _ in ()]", L=LOCK), "the global 'L'"),
        (by_value("def f(): return t.name", t=tool(name="t")(closing_over(LOCK))), None),
    ],
)
def test_what_a_function_looks_up_is_told_at_the_call(function: Any, where: Any) -> None:
    parcel.check_bound(function, tool="it")
    with pytest.raises(ToolError) as caught:
        parcel.pack(job(function), tool="it")
    if where is None:
        where = "the variable 'value' of the function of the tool 't' of the global 't'"
    text = f"tool 'it' can't run isolated: {where}, of type lock, can't be pickled ({lock_text()})"
    assert (str(caught.value), caught.value.code) == (text, "TOOL_FAILED")


def test_an_argument_that_cannot_be_sent_is_told_by_name() -> None:
    with pytest.raises(ToolError, match="its argument 'x', of type lock, can't be pickled"):
        parcel.pack(job(len, y=1, x=LOCK), tool="it")


def test_the_search_for_what_cannot_be_sent_comes_to_an_end() -> None:
    nested: Any = []
    for _ in range(100_000):
        nested = [nested]
    text = f"tool 'it' can't run isolated: {'the item 0 of ' * (parcel.MAX_LEVELS - 1)}its argument 'x', of"
    with pytest.raises(ToolError, match=f"{text} type list, can't be pickled"):
        parcel.pack(job(len, x=nested), tool="it")


def test_a_function_that_goes_by_its_name_may_hold_anything() -> None:
    def looks_top_level(lock: Any = LOCK) -> None:
        pass

    parcel.check_bound(uses_the_lock, tool="it")
    looks_top_level.__qualname__ = "looks_top_level"  # as functools.wraps leaves it
    parcel.check_bound(looks_top_level, tool="it")


def test_a_variable_that_is_empty_yet_is_no_mistake() -> None:
    def make() -> Any:
        @tool(isolate=True)
        def work(n: int) -> Any:
            return work

        return work

    assert make().name == "work"
