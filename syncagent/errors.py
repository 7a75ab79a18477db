"""Every exception that syncagent raises for a user's or the world's mistake.

It knows nothing of the other modules. Our own bugs are `AssertionError`; a stop is
`syncagent.cancel.Cancelled`, which is a `BaseException` and stands apart on purpose.

    SyncagentError
    ├── InvalidLog          whoever wrote the log: it breaks a rule, L1 to L10
    ├── SessionLive         wait, or use the process that drives the session
    ├── SessionOpenTurn     wait until the turn has ended, or use `inspect`
    ├── SessionNotFound     name a session that exists
    ├── SessionExists       choose another id, or open that session
    ├── AgentClosed         make a new agent
    ├── ModelError          the provider, the network or the request; `retryable` says who
    ├── ToolError           the tool: raise it to give the model an error of your wording
    └── StoreError          the file, the disk or its owner; `path` says which
        ├── StoreFull       make room, then `retry_flush()`
        ├── StoreFailed     reopen the store; the next open repairs
        ├── StoreReadOnly   make the file and its folder writable, or only read
        ├── StoreBusy       wait for the process that holds the file
        ├── StoreReplaced   somebody deleted or replaced the open file
        ├── StoreCorrupt    the file is damaged; nothing was changed
        ├── StoreTooNew     a newer syncagent wrote it: upgrade
        ├── NotAStore       the file belongs to another application
        ├── ForkedStore     open the store again in the child process
        ├── LeaseLost       another process took the session over
        └── WALUnavailable  use a local disk, or ask for `journal="delete"`
"""

from typing import Any, Dict, Optional, Tuple, Type

__all__ = [
    "AgentClosed",
    "ForkedStore",
    "InvalidLog",
    "LeaseLost",
    "ModelError",
    "NotAStore",
    "SessionExists",
    "SessionLive",
    "SessionNotFound",
    "SessionOpenTurn",
    "StoreBusy",
    "StoreCorrupt",
    "StoreError",
    "StoreFailed",
    "StoreFull",
    "StoreReadOnly",
    "StoreReplaced",
    "StoreTooNew",
    "SyncagentError",
    "ToolError",
    "WALUnavailable",
]


class SyncagentError(Exception):
    """The root: `except SyncagentError` catches whatever this package raises on purpose."""

    def __reduce__(self) -> Tuple[Any, ...]:
        # Python's own way calls the class with `args` alone, which fails where keywords are required:
        # an error could not be copied, nor come back from a pool of worker processes.
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(
    kind: Type["SyncagentError"], args: Tuple[Any, ...], state: Dict[str, Any]
) -> "SyncagentError":
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


class InvalidLog(SyncagentError):
    """A log breaks a rule of the grammar.

    `rule` is "L1" to "L10", `seq` the number of the event that breaks it, `text` the rule in words.
    """

    def __init__(self, rule: str, seq: int, text: str) -> None:
        super().__init__(rule, seq, text)
        self.rule = rule
        self.seq = seq
        self.text = text

    def __str__(self) -> str:
        return f"event {self.seq} breaks {self.rule}: {self.text}"


class SessionLive(SyncagentError):
    """The session is driven now, by process `pid` on `host` since `since` (ms since the epoch).

    `known` says that this process was asked and lives. Where it can't be asked, being on another
    machine or another user's, the session can be opened with `steal`.
    """

    def __init__(self, session: str, pid: int, host: str, since: int, known: bool = True) -> None:
        super().__init__(session, pid, host, since, known)
        self.session = session
        self.pid = pid
        self.host = host
        self.since = since
        self.known = known

    def __str__(self) -> str:
        import datetime

        since = datetime.datetime.fromtimestamp(self.since / 1000, datetime.timezone.utc)
        return (
            f"session {self.session!r} is live: process {self.pid} on {self.host} drives it"
            f" since {since:%Y-%m-%d %H:%M:%S} UTC; "
            + (
                "wait until it ends, or end it"
                if self.known
                else "it can't be asked whether it still does: if it is gone, open the session with steal"
            )
        )


class SessionOpenTurn(SyncagentError):
    """The session is live in this process and turn `turn` is open, so its log is not balanced."""

    def __init__(self, session: str, turn: int) -> None:
        super().__init__(session, turn)
        self.session = session
        self.turn = turn

    def __str__(self) -> str:
        return (
            f"session {self.session!r} has turn {self.turn} open: wait until it has ended,"
            " or read it as it stands with inspect()"
        )


class SessionNotFound(SyncagentError):
    """The store at `path` holds no session of that id."""

    def __init__(self, session: str, path: str) -> None:
        super().__init__(session, path)
        self.session = session
        self.path = path

    def __str__(self) -> str:
        return f"there is no session {self.session!r} in {self.path}"


class SessionExists(SyncagentError):
    """A session of that id is already in the store."""

    def __init__(self, session: str, path: str) -> None:
        super().__init__(session, path)
        self.session = session
        self.path = path

    def __str__(self) -> str:
        return f"session {self.session!r} already exists in {self.path}: open it, or choose another id"


class AgentClosed(SyncagentError):
    """The agent was closed; nothing wakes it any more."""


class ModelError(SyncagentError):
    """A model request failed.

    `code` is lower case, such as "rate_limit", "overloaded", "authentication", "bad_request",
    "connection", "truncated"; `retryable` says whether the same request may work later, and
    `retry_after` holds the seconds that the provider asked for, if it did.
    """

    def __init__(
        self, message: str, *, code: str, retryable: bool = False, retry_after: Optional[float] = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.retryable = retryable
        self.retry_after = retry_after


class ToolError(SyncagentError):
    """A call failed. Tools raise it to give the model an error of their own wording.

    `code` is the `error.code` of the call's result; for a tool's own errors it is "TOOL_FAILED".
    """

    def __init__(self, message: str, *, code: str = "TOOL_FAILED") -> None:
        super().__init__(message)
        self.code = code


class StoreError(SyncagentError):
    """The log could not be read or written; `path` is the database file."""

    def __init__(self, message: str, *, path: str) -> None:
        super().__init__(message)
        self.path = path


class StoreFull(StoreError):
    """The disk or a quota is full. The events are kept in order; with space they can be written."""


class StoreFailed(StoreError):
    """A write or fsync failed. The store refuses all work; reopen it, and the next open repairs."""


class StoreReadOnly(StoreError):
    """The file or its folder cannot be written."""


class StoreBusy(StoreError):
    """Another process held the database for too long. The events are kept."""


class StoreReplaced(StoreError):
    """The database file was deleted or replaced while it was open."""


class StoreCorrupt(StoreError):
    """The file is damaged; `session` and `seq` say where, as far as that is known."""

    def __init__(
        self, message: str, *, path: str, session: Optional[str] = None, seq: Optional[int] = None
    ) -> None:
        super().__init__(message, path=path)
        self.session = session
        self.seq = seq


class StoreTooNew(StoreError):
    """A newer version wrote the file; `version` is its schema's number."""

    def __init__(self, message: str, *, path: str, version: int) -> None:
        super().__init__(message, path=path)
        self.version = version


class NotAStore(StoreError):
    """The file is another application's database, or no database at all."""


class ForkedStore(StoreError):
    """The store was opened before a fork; the child must open its own."""


class LeaseLost(StoreError):
    """Another process took the session over; this handle is dead and wrote nothing."""

    def __init__(self, message: str, *, path: str, session: str) -> None:
        super().__init__(message, path=path)
        self.session = session


class WALUnavailable(StoreError):
    """The file system refuses write-ahead logging, as network file systems do."""
