"""The program that runs the body of an isolated tool, in a process of its own.

Run as `python isolated_child.py`, with a parcel (see `parcel`) on standard input and the `Board` as
descriptor 3. It imports the standard library alone until the parcel has brought the parent's path,
and later no more of this package than the body needs. It knows no session and no agent.
"""

import os
import sys

if __name__ == "__main__":
    # The folder of a script comes first in its path: nothing in it may hide the standard library.
    sys.path[:] = [path for path in sys.path if path != os.path.dirname(os.path.abspath(__file__))]

import contextlib
import io
import json
import pickle
import signal
import threading
from typing import Any, Callable, Dict, Optional, Tuple

__all__ = ["BOARD", "Board", "main", "worded"]

#: The number of the board's descriptor in this program.
BOARD = 3

# Where things stand on the board.
_QUIET, _BEGUN, _LENGTH, _CAUSE, _REPORT = 0, 1, 8, 16, 8192
#: How many characters of a cause's text fit, each of up to 12 bytes.
_CAUSE_TEXT = 600


class Board:
    """A file without a name that parent and child share: what each has to tell the other.

    The parent tells why it sends SIGTERM, before it does, and that it shows no more output. The child
    tells that the body is about to run, and at last its report, which counts once its length is there.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def _put(self, data: bytes, at: int) -> None:
        rest = memoryview(data)
        while rest:
            count = os.pwrite(self._fd, rest, at)
            at, rest = at + count, rest[count:]

    def _get(self, size: int, at: int) -> bytes:
        pieces = []
        while size > 0:
            piece = os.pread(self._fd, size, at)
            if not piece:
                break
            pieces.append(piece)
            at, size = at + len(piece), size - len(piece)
        return b"".join(pieces)

    def hush(self) -> None:
        """No more output is shown."""
        self._put(b"\1", _QUIET)

    @property
    def quiet(self) -> bool:
        return self._get(1, _QUIET) == b"\1"

    def begin(self) -> None:
        """The body is about to run."""
        self._put(b"\1", _BEGUN)

    @property
    def begun(self) -> bool:
        return self._get(1, _BEGUN) == b"\1"

    def tell_cause(self, cause: str, text: Optional[str]) -> None:
        """Why the token of the parent was cancelled."""
        told = json.dumps([cause, text if text is None else text[:_CAUSE_TEXT]])
        self._put(told.encode("ascii") + b"\0", _CAUSE)

    @property
    def cause(self) -> Tuple[str, Optional[str]]:
        """The cause and its text; "user" where nobody has told: the signal came from outside."""
        told = self._get(_REPORT - _CAUSE, _CAUSE).partition(b"\0")[0]
        cause, text = json.loads(told) if told else ("user", None)
        return cause, text

    def report(self, report: Dict[str, Any]) -> None:
        """What the body came to."""
        data = json.dumps(report, allow_nan=False).encode("ascii")
        self._put(data, _REPORT)
        self._put(len(data).to_bytes(8, "little"), _LENGTH)

    def read_report(self) -> Optional[Dict[str, Any]]:
        """The report; None if the child died before it was complete, or if something else wrote here."""
        size = int.from_bytes(self._get(8, _LENGTH), "little")
        if size == 0 or os.fstat(self._fd).st_size < _REPORT + size:
            return None
        try:
            report = json.loads(self._get(size, _REPORT))
        except ValueError:
            return None
        return report if isinstance(report, dict) else None


def main() -> None:
    """Run the body of the parcel on standard input and report on the board."""
    me = os.getpid()
    os.set_inheritable(BOARD, False)  # what the body starts has no business with it
    board = Board(BOARD)
    report = _perform(_take_parcel(), board)
    if os.getpid() != me:
        return  # the body has forked, and this is the copy, which has come out of it too
    try:
        board.report(report)
    except (OSError, MemoryError) as exc:
        board.report({"kind": "raised", "text": f"its result can't be handed back: {worded(exc)}"})


def _take_parcel() -> bytes:
    """Read standard input to its end: for the body it is empty."""
    with open(0, "rb", closefd=False) as file:
        data = file.read()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # whatever the locale says, the parent reads UTF-8
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    return data


def _perform(parcel: bytes, board: Board) -> Dict[str, Any]:
    """Unpack, run, and put into a report whatever comes of it."""
    try:
        job = _unpack(parcel)
    except BaseException as exc:  # also a SystemExit of a module that is imported for it
        return {"kind": "unready", "text": worded(exc)}
    try:
        with contextlib.ExitStack() as stack:
            check = _fill(job["values"], job["hidden"], board, stack)
            args = [_positional(job, name) for name in job["positional"]]
            board.begin()
            return _told(job["function"](*args, **job["values"]), check)
    except BaseException as exc:
        return _failure(exc)


def _unpack(parcel: bytes) -> Dict[str, Any]:
    stream = io.BytesIO(parcel)
    setup = pickle.load(stream)
    if setup["tag"] != sys.implementation.cache_tag:
        raise RuntimeError(
            f"it runs on {sys.implementation.cache_tag}, the tool's own process on {setup['tag']}"
        )
    sys.path[:] = setup["path"]
    sys.argv[:] = setup["argv"]
    job: Dict[str, Any] = pickle.load(stream)
    return job


def _positional(job: Dict[str, Any], name: str) -> Any:
    if name in job["values"]:
        return job["values"].pop(name)
    import inspect

    return inspect.signature(job["function"]).parameters[name].default


def _fill(
    values: Dict[str, Any], hidden: Dict[str, str], board: Board, stack: contextlib.ExitStack
) -> Optional[Callable[[], None]]:
    """Put the token and the context in; return the token's check, None if the body has no token.

    A body without one is ended by SIGTERM itself.
    """
    if not hidden:
        return None
    token = _listening_token(board)
    for key, what in hidden.items():
        values[key] = token if what == "token" else _context(token, board, stack)
    check: Callable[[], None] = token.raise_if_cancelled
    return check


def _listening_token(board: Board) -> Any:
    """A token that SIGTERM cancels, with the cause that the parent has told.

    A signal handler runs inside whatever the main thread does, so all it does is to write a byte; the
    interpreter's own does so even while the main thread is in C code.
    """
    from syncagent.cancel import CancellationToken

    token = CancellationToken()
    word = bytes([signal.SIGTERM])
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def watch() -> None:
        while os.read(reader, 1) != word:  # the interpreter tells of other signals too
            pass
        token.cancel(*board.cause)

    _spare_copies()
    threading.Thread(target=watch, name="syncagent-isolated-token", daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: os.write(writer, word))
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    return token


def _spare_copies() -> None:
    """Have SIGTERM end a copy that the body forks, a worker of multiprocessing say, at once.

    With our handler it would not, and it would cancel our token: the pipe is the same. The signal is
    held back over the fork, as it may be sent to a copy that is not yet ready.
    """
    masks: Dict[int, Any] = {}

    def before() -> None:
        masks[threading.get_ident()] = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])

    def after() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.pop(threading.get_ident()))

    def after_in_copy() -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        after()

    os.register_at_fork(before=before, after_in_parent=after, after_in_child=after_in_copy)


def _context(token: Any, board: Board, stack: contextlib.ExitStack) -> Any:
    from syncagent.boundary.process import shared
    from syncagent.boundary.tools.base import CallContext

    emitter = _Emitter(board)
    return CallContext(token=token, emit=emitter.emit, processes=stack.enter_context(shared()))


class _Emitter:
    """Shows text by way of standard output as it was at the start, whatever the body makes of it."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._fd = os.dup(1)
        self._lock = threading.Lock()  # keeps a long text in one piece

    def emit(self, text: str) -> bool:
        from syncagent.boundary.tools.text import clean

        if not isinstance(text, str):
            raise TypeError(f"emit() takes a string, not {type(text).__name__}")
        if sys.__stdout__ is not None and not sys.__stdout__.closed:
            sys.__stdout__.flush()
        rest = memoryview(clean(text).encode("utf-8"))
        with self._lock:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        return not self._board.quiet


def _told(result: Any, check: Optional[Callable[[], None]]) -> Dict[str, Any]:
    """What the body returned, as text or as the parts of a `ToolOutput`."""
    if type(result) is str:  # most are, and need no more of the package
        return {"kind": "text", "text": result}
    if hasattr(type(result), "__await__") or hasattr(type(result), "__anext__"):
        if hasattr(result, "close"):
            result.close()  # or Python warns that nobody has awaited it
        raise TypeError(f"a {type(result).__name__} came back: a tool is a plain function that may block")
    base = sys.modules.get("syncagent.boundary.tools.base")
    if base is not None and isinstance(result, base.ToolOutput):
        try:
            kept = json.loads(json.dumps(result.content, allow_nan=False)) == result.content
        except (TypeError, ValueError, RecursionError) as exc:
            raise TypeError(f"the content of its ToolOutput can't be handed back: {worded(exc)}") from exc
        if not kept:
            raise TypeError("the content of its ToolOutput can't be handed back: it changes as JSON")
        parts = {"content": result.content, "error": result.error, "message": result.message}
        return {"kind": "output", "parts": parts}
    from syncagent.boundary.tools.text import to_text

    return {"kind": "text", "text": to_text(result, check=check)}


def _failure(exc: BaseException) -> Dict[str, Any]:
    errors, cancel = sys.modules.get("syncagent.errors"), sys.modules.get("syncagent.cancel")
    if errors is not None and isinstance(exc, errors.ToolError):
        text, code = _text(exc), getattr(exc, "code", None)
        return {
            "kind": "tool_error",
            "text": worded(exc) if text is None else text,
            "code": code if isinstance(code, str) else "TOOL_FAILED",
        }
    stopped = cancel is not None and isinstance(exc, cancel.Cancelled)
    return {"kind": "cancelled" if stopped else "raised", "text": worded(exc)}


def worded(exc: BaseException) -> str:
    """An exception's class and text, also of one whose own `str()` fails."""
    name, text = type(exc).__name__, _text(exc)
    if text is None:
        return f"{name} (its text can't be had)"
    return f"{name}: {text}" if text else name


def _text(exc: BaseException) -> Optional[str]:
    try:
        return str(exc)
    except BaseException:  # of whoever wrote its class
        return None


if __name__ == "__main__":
    main()
