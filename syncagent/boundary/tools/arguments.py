"""Decode the text that a model sent as a call's arguments. It knows JSON and nothing of schemas."""

import json
import math
import re
from typing import Any, Dict, Optional

from syncagent.errors import ToolError

__all__ = ["MAX_DEPTH", "bad_arguments", "decode"]

#: How deep arguments may nest. The decoder of the standard library recurses in C.
MAX_DEPTH = 100

_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)


def bad_arguments(tool: str, text: str) -> ToolError:
    """The error that a call with unfit arguments gets; it names the tool."""
    return ToolError(f"bad arguments for tool {tool!r}: {text}", code="BAD_ARGUMENTS")


def decode(arguments: Optional[str], *, tool: str) -> Dict[str, Any]:
    """The JSON object in `arguments`; None, "", blanks and null mean `{}`.

    Raises `ToolError` with code "BAD_ARGUMENTS" for everything else.
    """
    if arguments is None or not arguments.strip():
        return {}
    if _too_deep(arguments):
        raise bad_arguments(tool, f"they nest deeper than {MAX_DEPTH} levels")
    try:
        value = json.loads(arguments, parse_constant=_no_constant, parse_float=_finite)
    except json.JSONDecodeError as exc:
        where = f"line {exc.lineno} column {exc.colno}"
        raise bad_arguments(tool, f"not valid JSON: {exc.msg} at {where}") from None
    except ValueError as exc:  # a number that JSON or Python has no place for
        raise bad_arguments(tool, f"not valid JSON: {exc}") from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise bad_arguments(tool, f"they must be a JSON object, not {_word(value)}")
    return value


def _too_deep(text: str) -> bool:
    """Whether brackets outside strings open more than MAX_DEPTH levels; linear, no recursion."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return False
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(text):
        char = match.group()[0]
        if char in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                return True
        elif char in "]}":
            depth -= 1
    return False


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON value")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError("a number is out of range")
    return value


def _word(value: Any) -> str:
    words = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "an array"}
    return words[type(value)]
