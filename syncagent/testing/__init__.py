"""Parts for tests of programs that use syncagent, and of syncagent itself.

    from syncagent.testing import FailPoints, ModelServer, ScriptedModel, assert_log, call, hold

`ScriptedModel` is a model without a network; `ModelServer` plays the same scripts over HTTP;
`FailPoints` stops, breaks or kills a program at a named point; `assert_log` checks a log.
What the scripts are made of stands in `syncagent.testing.script`.
"""

from syncagent.testing.logs import assert_log
from syncagent.testing.points import FailPoints, Point
from syncagent.testing.script import (
    Item,
    call,
    cut,
    data,
    delay,
    error,
    finish,
    headers,
    hold,
    raw,
    reasoning,
    stall,
    status,
    text,
    usage,
)
from syncagent.testing.scripted import ScriptedModel
from syncagent.testing.server import ModelServer, ServerRequest

__all__ = [
    "FailPoints",
    "Item",
    "ModelServer",
    "Point",
    "ScriptedModel",
    "ServerRequest",
    "assert_log",
    "call",
    "cut",
    "data",
    "delay",
    "error",
    "finish",
    "headers",
    "hold",
    "raw",
    "reasoning",
    "stall",
    "status",
    "text",
    "usage",
]
