"""A synchronous agent runtime: one append-only log per session, and stops that reach whatever blocks.

Importing this package loads none of its modules and nothing from outside the standard library.
Each public name brings its module when it is first asked for; it knows where they live, no more.
"""

from typing import TYPE_CHECKING, Any, List

if TYPE_CHECKING:
    from syncagent._version import __version__
    from syncagent.boundary.models.chat import ChatModel
    from syncagent.boundary.models.protocol import Chunk, Model, ModelRequest
    from syncagent.boundary.tools.base import CallContext, Tool, ToolOutput, tool
    from syncagent.boundary.tools.bash import bash
    from syncagent.boundary.tools.files import file_tools
    from syncagent.cancel import CancellationToken, Cancelled, Cause
    from syncagent.errors import (
        AgentClosed,
        ForkedStore,
        InvalidLog,
        LeaseLost,
        ModelError,
        NotAStore,
        SessionExists,
        SessionLive,
        SessionNotFound,
        SessionOpenTurn,
        StoreBusy,
        StoreCorrupt,
        StoreError,
        StoreFailed,
        StoreFull,
        StoreReadOnly,
        StoreReplaced,
        StoreTooNew,
        SyncagentError,
        ToolError,
        WALUnavailable,
    )
    from syncagent.runtime.hooks import Continue, PreStep, Reject, RequestStep, TurnStopping
    from syncagent.runtime.result import RepairReport, TurnFailed, TurnResult
    from syncagent.runtime.store import Store
    from syncagent.surface.interrupt import Agent

__all__ = [
    "Agent",
    "AgentClosed",
    "CallContext",
    "CancellationToken",
    "Cancelled",
    "Cause",
    "ChatModel",
    "Chunk",
    "Continue",
    "ForkedStore",
    "InvalidLog",
    "LeaseLost",
    "Model",
    "ModelError",
    "ModelRequest",
    "NotAStore",
    "PreStep",
    "Reject",
    "RepairReport",
    "RequestStep",
    "SessionExists",
    "SessionLive",
    "SessionNotFound",
    "SessionOpenTurn",
    "Store",
    "StoreBusy",
    "StoreCorrupt",
    "StoreError",
    "StoreFailed",
    "StoreFull",
    "StoreReadOnly",
    "StoreReplaced",
    "StoreTooNew",
    "SyncagentError",
    "Tool",
    "ToolError",
    "ToolOutput",
    "TurnFailed",
    "TurnResult",
    "TurnStopping",
    "WALUnavailable",
    "__version__",
    "bash",
    "file_tools",
    "tool",
]

#: Where the names live that are not in `syncagent.errors`.
_HOMES = {
    "Agent": "syncagent.surface.interrupt",
    "CallContext": "syncagent.boundary.tools.base",
    "CancellationToken": "syncagent.cancel",
    "Cancelled": "syncagent.cancel",
    "Cause": "syncagent.cancel",
    "ChatModel": "syncagent.boundary.models.chat",
    "Chunk": "syncagent.boundary.models.protocol",
    "Continue": "syncagent.runtime.hooks",
    "Model": "syncagent.boundary.models.protocol",
    "ModelRequest": "syncagent.boundary.models.protocol",
    "PreStep": "syncagent.runtime.hooks",
    "Reject": "syncagent.runtime.hooks",
    "RepairReport": "syncagent.runtime.result",
    "RequestStep": "syncagent.runtime.hooks",
    "Store": "syncagent.runtime.store",
    "Tool": "syncagent.boundary.tools.base",
    "ToolOutput": "syncagent.boundary.tools.base",
    "TurnFailed": "syncagent.runtime.result",
    "TurnResult": "syncagent.runtime.result",
    "TurnStopping": "syncagent.runtime.hooks",
    "__version__": "syncagent._version",
    "bash": "syncagent.boundary.tools.bash",
    "file_tools": "syncagent.boundary.tools.files",
    "tool": "syncagent.boundary.tools.base",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(_HOMES.get(name, "syncagent.errors")), name)
    globals()[name] = value  # from now on the name is found without this function
    return value


def __dir__() -> List[str]:
    return sorted({*globals(), *__all__})
