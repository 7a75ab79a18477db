"""An isolated tool's function and its arguments as bytes, and in words what can't be made bytes.

What an import finds goes by its name, everything else by value: functions of a script or a notebook,
closures, lambdas. cloudpickle does that; what is added is that `@tool` puts a `Tool` where the
import would look for the function. It knows no process.
"""

import functools
import io
import itertools
import pickle
import sys
import types
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

from syncagent.boundary.tools.base import Tool
from syncagent.errors import ToolError

__all__ = ["check_bound", "find", "pack"]

#: Where the search for what can't be pickled stops: each level, and each part, is pickled again.
MAX_LEVELS = 8
MAX_PARTS = 1000

#: What a value is called, and the value.
Part = Tuple[str, Any]


def pack(job: Dict[str, Any], *, tool: str) -> bytes:
    """The parcel for `isolated_child`: how this process is set up, and the job.

    Raises `ToolError`, with the tool and what it is that can't be pickled.
    """
    file = io.BytesIO()
    path = [one for one in sys.path if isinstance(one, str)]  # an import looks at no others
    setup = {"tag": sys.implementation.cache_tag, "path": path, "argv": list(_argv())}
    pickle.dump(setup, file)
    try:
        _dump(job, file)
    except Exception as exc:
        parts = [("its function", job["function"])]
        parts += [(f"its argument {key!r}", value) for key, value in job["values"].items()]
        raise ToolError(f"tool {tool!r} can't run isolated: {_blame(parts, exc)}") from exc
    return file.getvalue()


def check_bound(function: Callable[..., Any], *, tool: str) -> None:
    """Raise `TypeError` if what is bound to a function by now, such as its closure, can't be pickled.

    What it finds at a call only, its globals above all, may not be there yet. A function at the top
    of a module that can be imported will go by its name: nothing that is bound to it is sent.
    """
    plain = isinstance(function, types.FunctionType)
    if plain and function.__module__ in sys.modules and function.__module__ != "__main__":
        if "<locals>" not in function.__qualname__ and not _by_value(function.__module__):
            return
    for words, value in _bound(function) if plain else [("what it is made of", function)]:
        exc = _refusal(value)
        if exc is not None:
            raise TypeError(f"tool {tool!r} can't be isolated: {_blame([(words, value)], exc)}")


def find(module: str, path: str, inside: bool) -> Any:
    """What an import finds under that name, or, `inside` of the `Tool` there, its function."""
    import importlib

    found: Any = importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    return found.function if inside and isinstance(found, Tool) else found


def _argv() -> List[str]:
    return getattr(sys, "argv", None) or [""]  # an embedded interpreter may have none


def _dump(value: Any, file: Any) -> None:
    import cloudpickle

    class Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]
        def reducer_override(self, value: Any) -> Any:
            if type(value) is Tool:
                where = _place(value.function, value)
                return NotImplemented if where is None else (find, (*where, False))
            if type(value) is types.FunctionType:
                where = _place(value, None)
                if where is not None:
                    return find, (*where, True)
            return super().reducer_override(value)

    Pickler(file).dump(value)


def _place(function: Any, tool: Optional[Tool]) -> Optional[Tuple[str, str]]:
    """Module and name under which an import finds the tool; or any tool of the function if None."""
    name, path = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    found = sys.modules.get(name) if isinstance(name, str) and isinstance(path, str) else None
    if found is None or name == "__main__" or _by_value(str(name)):
        return None
    try:
        for part in str(path).split("."):
            found = getattr(found, part)
    except AttributeError:
        return None
    if tool is None:
        is_it = type(found) is Tool and found.function is function
    else:
        is_it = found is tool
    return (str(name), str(path)) if is_it else None


def _by_value(module: str) -> bool:
    """Whether the user has asked cloudpickle to send this module's functions by value."""
    asked: Any = sys.modules.get("cloudpickle")  # whoever has asked has imported it
    wanted = asked.list_registry_pickle_by_value() if asked is not None else ()
    parts = module.split(".")
    return any(".".join(parts[:count]) in wanted for count in range(1, len(parts) + 1))


# -- what can't be pickled, in words -------------------------------------------------------------


class _Nowhere:
    """A file that forgets what is written to it."""

    def write(self, data: Any) -> int:
        return len(data)


def _refusal(value: Any) -> Optional[Exception]:
    """Why a value can't be pickled, or None."""
    try:
        _dump(value, _Nowhere())
    except Exception as exc:
        return exc
    return None


def _blame(parts: List[Part], exc: Exception) -> str:
    """Name the innermost of the parts that can't be pickled; `exc` is what the whole came to."""
    path: List[str] = []
    seen: Set[int] = set()
    culprit: Any = None
    todo: Iterator[Part] = iter(parts)
    while len(path) < MAX_LEVELS:
        for words, value in itertools.islice(todo, MAX_PARTS):
            refusal = None if id(value) in seen else _refusal(value)
            if refusal is not None:
                seen.add(id(value))
                path.insert(0, words)
                culprit, exc, todo = value, refusal, _parts(value)
                break
        else:
            break
    if not path:
        return f"it can't be pickled ({exc})"
    if len(path) > 1 and path[-1] in ("its function", "what it is made of"):
        path.pop()
    return f"{' of '.join(path)}, of type {type(culprit).__name__}, can't be pickled ({exc})"


def _parts(value: Any) -> Iterator[Part]:
    """What a value is made of, as far as a name can be given to it."""
    yield from _bound(value)
    if isinstance(value, types.FunctionType):
        for name in _names(value.__code__):
            if name in value.__globals__:
                yield f"the global {name!r}", value.__globals__[name]
    elif isinstance(value, dict):
        for key, item in value.items():
            yield f"the item {key!r}", item
    elif isinstance(value, (list, tuple)):
        for at, item in enumerate(value):
            yield f"the item {at}", item
    elif isinstance(value, Tool):
        yield f"the function of the tool {value.name!r}", value.function
    elif not isinstance(value, (type, types.ModuleType)):
        for key, item in getattr(value, "__dict__", {}).items():
            yield f"the attribute {key!r}", item


def _bound(function: Any) -> Iterator[Part]:
    """What a function carries with it, wherever it is called."""
    if isinstance(function, functools.partial):
        yield "the function of its partial", function.func
        for value in (*function.args, *function.keywords.values()):
            yield "an argument of its partial", value
    elif isinstance(function, types.MethodType):
        yield "the object of its method", function.__self__
    elif isinstance(function, types.FunctionType):
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
            try:
                yield f"the variable {name!r}", cell.cell_contents
            except ValueError:  # it is empty yet
                pass
        for value in function.__defaults__ or ():
            yield "a default", value
        for name, value in (function.__kwdefaults__ or {}).items():
            yield f"the default of {name!r}", value


def _names(code: types.CodeType) -> Iterator[str]:
    """The names that code looks up, with those of the functions in it."""
    yield from code.co_names
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _names(const)
