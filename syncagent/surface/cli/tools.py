"""From the names after `--tool` to tools. It knows where they are found and who has to agree."""

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any, List, Sequence

from syncagent.surface.cli.options import WrongUse

if TYPE_CHECKING:
    from syncagent.boundary.tools.base import Tool

__all__ = ["load_tools"]


def load_tools(names: Sequence[str], *, yes: bool) -> "List[Tool]":
    """The tools of these names: `bash`, `files`, or `module:function`, also of a module in this folder.

    Raises `WrongUse` for one that isn't there, and for one that can change things unless `yes`.
    """
    tools: "List[Tool]" = []
    for name in names:
        for tool in _load(name):
            if tool.name in [other.name for other in tools]:
                raise WrongUse(f"--tool {name}: there is a tool {tool.name!r} already")
            if tool.effect != "read" and not yes:
                raise WrongUse(
                    f"--tool {name}: {_what(name, tool)} may change things (its effect is {tool.effect}),"
                    " so give --yes if the model may call it without asking you"
                )
            tools.append(tool)
    return tools


def _what(name: str, tool: "Tool") -> str:
    return tool.name if name == "files" else "it"


def _load(name: str) -> "List[Tool]":
    if name == "bash":
        from syncagent.boundary.tools.bash import bash

        return [bash]
    if name == "files":
        return _files()
    module, colon, path = name.partition(":")
    if not (module and colon and path):
        raise WrongUse(f"--tool {name}: a tool is bash, files, or module:function")
    return [_made(name, _attribute(name, _imported(name, module), path))]


def _files() -> "List[Tool]":
    """The file tools of the current folder."""
    from syncagent.boundary.tools.files import file_tools

    try:
        return file_tools(".")
    except (ValueError, NotImplementedError) as exc:
        raise WrongUse(f"--tool files: {exc}") from exc


def _imported(name: str, module: str) -> Any:
    """The module; the current folder is looked at first, as `python -m` does."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as exc:
        if exc.name is None or not (module == exc.name or module.startswith(f"{exc.name}.")):
            raise WrongUse(f"--tool {name}: {module} needs a module that is missing: {exc.name}") from exc
        raise WrongUse(
            f"--tool {name}: there is no module {module!r}, neither in {here} nor among the installed ones"
        ) from exc
    except (Exception, SystemExit) as exc:  # whatever a stranger's module does when it is imported
        raise WrongUse(f"--tool {name}: importing {module} failed: {type(exc).__name__}: {exc}") from exc


def _attribute(name: str, module: Any, path: str) -> Any:
    value = module
    for part in path.split("."):
        try:
            value = getattr(value, part)
        except AttributeError:
            raise WrongUse(f"--tool {name}: {module.__name__} has no {path!r}") from None
    return value


def _made(name: str, value: Any) -> "Tool":
    from syncagent.boundary.tools.base import Tool, tool

    if isinstance(value, Tool):
        return value
    if not callable(value):
        kind = type(value).__name__
        raise WrongUse(f"--tool {name}: a value of type {kind} is neither a function nor a tool")
    try:
        return tool(value)
    except (TypeError, ValueError) as exc:
        raise WrongUse(f"--tool {name}: no tool can be made of it: {exc}") from exc
