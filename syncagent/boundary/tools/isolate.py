"""The body of an isolated tool: each call in a process of its own, under a guard.

It packs the function, has `isolated_child` run it, and makes of its report, or of its death, what
the body of any tool comes to. It knows no session.

A module with an isolated tool is imported for every call of it, and this one too: what is needed at
a call alone is imported there.
"""

import contextlib
import os
import sys
import threading
from typing import Any, Dict, Iterator, List, Optional

import attrs

from syncagent.boundary.tools import isolated_child, parcel
from syncagent.boundary.tools.base import CallContext, ToolOutput
from syncagent.boundary.tools.isolated_child import Board
from syncagent.boundary.tools.schema import Signature
from syncagent.cancel import CancellationToken, Cancelled, Cause
from syncagent.errors import ToolError

__all__ = ["Isolated"]

#: Seconds between SIGTERM and SIGKILL.
GRACE = 0.5
#: How many bytes of its output are kept, for a process that can't even begin.
LAST_WORDS = 4096


@attrs.frozen(kw_only=True, eq=False)
class Isolated:
    """How the calls of one isolated tool are done."""

    signature: Signature

    @classmethod
    def of(cls, signature: Signature) -> "Isolated":
        """Raises `TypeError` if what is bound to the function can't be sent to another process."""
        parcel.check_bound(signature.function, tool=signature.name)
        return cls(signature=signature)

    def call(self, values: Dict[str, Any], context: CallContext) -> ToolOutput:
        """Run the function in a process of its own; when this returns or raises, that is gone.

        What the function prints is shown while it runs. Raises `Cancelled` if a stop cut it, and
        `ToolError` for whatever it raised, for its process's death, and for what can't be pickled.
        """
        from syncagent.boundary.process import ProcessError
        from syncagent.boundary.process.launcher import find_python

        name = self.signature.name
        data = parcel.pack(self._job(values), tool=name)
        with _new_board() as fd, _Stop(context.token, fd) as stop:
            board = Board(fd)

            def show(text: str) -> bool:
                more = context.emit(text)
                if more is False:
                    board.hush()
                return more

            try:
                result = context.processes.run(
                    [find_python(), *_options(), _program()],
                    token=stop.token,
                    stdin=data,
                    grace=GRACE,
                    on_output=show,
                    head=0,
                    tail=LAST_WORDS,
                    share=fd,
                )
            except Cancelled:
                if board.begun:  # it is none of ours: showing the output has raised it
                    raise
                return _never_began()
            except ProcessError as exc:
                raise ToolError(f"{name} failed: its process was not to be had: {exc}") from exc
            report = board.read_report()
            if report is not None:
                return _outcome(name, report, context.token, result.stopped)
            if not result.cancelled:
                raise ToolError(f"{name} failed: {_death(result, board.begun)}")
            if not board.begun:
                return _never_began()
        context.token.raise_if_cancelled()
        raise ToolError(f"{name} failed: its process was stopped together with all that ran here")

    def _job(self, values: Dict[str, Any]) -> Dict[str, Any]:
        parameters = self.signature.signature.parameters.values()
        return {
            "function": self.signature.function,
            "values": dict(values),
            "hidden": self.signature.hidden,
            "positional": [one.name for one in parameters if one.kind is one.POSITIONAL_ONLY],
        }


@contextlib.contextmanager
def _new_board() -> Iterator[int]:
    """A file without a name, in memory where the system can do that; nothing of it is ever left."""
    try:
        fd = os.memfd_create("syncagent-isolated")
    except (AttributeError, OSError):  # no Linux, or a filter that forbids it
        import tempfile

        with tempfile.TemporaryFile() as file:
            yield file.fileno()
        return
    try:
        yield fd
    finally:
        os.close(fd)


class _Stop:
    """Carries a cancel of the call's token on to the child: first its cause, then the signal.

    `token` is what the process runs under. It is no child of the call's: the wake-up of the process
    would come before ours, and the signal before its cause.
    """

    def __init__(self, source: CancellationToken, fd: int) -> None:
        self.token = CancellationToken()
        self._source = source
        self._board: Optional[Board] = Board(fd)
        self._lock = threading.Lock()  # a wake-up that comes late must not meet another's descriptor
        self._pid = os.getpid()
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> "_Stop":
        self._stack.enter_context(self._source.on_cancel(self._carry))
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()
        with self._lock:
            self._board = None
        self.token.close()

    def _carry(self) -> None:
        if os.getpid() != self._pid:
            return  # a forked child cancels its copy of the token: the process is its parent's
        cause = self._source.cause or Cause.USER
        with self._lock:
            if self._board is not None:
                with contextlib.suppress(OSError):  # a full disk: the signal goes without its cause
                    self._board.tell_cause(cause.value, self._source.text)
        self.token.cancel(cause, self._source.text)


def _options() -> List[str]:
    """The options of this interpreter that change what Python code does. Its path goes in the parcel."""
    flags = sys.flags
    options = ["-I"] if flags.isolated else []
    options += ["-E"] if flags.ignore_environment else []
    options += ["-s"] if flags.no_user_site else []
    options += ["-B"] if sys.dont_write_bytecode else []
    options += ["-b"] * flags.bytes_warning + ["-O"] * flags.optimize
    options += ["-X", "dev"] if flags.dev_mode else []
    options += ["-X", "utf8"] if flags.utf8_mode else []
    for option in sys.warnoptions:
        options += ["-W", option]
    return options


def _program() -> str:
    from syncagent.boundary.process import ProcessError

    path = os.path.abspath(isolated_child.__file__)
    if not os.path.isfile(path):
        raise ProcessError(f"{path} is no file (a zipped package?)")
    return path


def _never_began() -> ToolOutput:
    """The output of a call that was stopped while its process was still getting ready."""
    from syncagent.log.closers import NOT_DISPATCHED_TEXT as text

    return ToolOutput.from_text(text, error="ABORTED_BEFORE_DISPATCH", message=text)


def _outcome(name: str, report: Dict[str, Any], token: CancellationToken, stopped: int) -> ToolOutput:
    """What the child reported. Raises what the body of a plain tool would raise in its place."""
    kind = report["kind"]
    if kind == "text":
        output = ToolOutput.from_text(report["text"])
    elif kind == "output":
        output = ToolOutput(**report["parts"])
    elif kind == "tool_error":
        raise ToolError(report["text"], code=report["code"])
    elif kind == "unready":
        raise ToolError(f"{name} failed: it can't be unpacked in a process of its own: {report['text']}")
    else:
        if kind == "cancelled":
            token.raise_if_cancelled()
        raise ToolError(f"{name} failed: {report['text']}")
    if stopped and isinstance(output.content, list):
        what = "1 background process was" if stopped == 1 else f"{stopped} background processes were"
        note = {"type": "text", "text": f"[{what} stopped as the function had returned]"}
        return attrs.evolve(output, content=[*output.content, note])
    return output


def _death(result: Any, begun: bool) -> str:
    """What is to be said of a process that ended without a report."""
    if not begun:
        words = result.output.strip()
        return f"its process could not begin: {result.ending}" + (f": {words}" if words else "")
    if result.signal is None:
        return f"its process ended with {result.ending} before the function had returned"
    hint = "; the system does that when memory runs out" if result.signal == 9 else ""
    return f"its process was {result.ending} before the function had returned{hint}"
