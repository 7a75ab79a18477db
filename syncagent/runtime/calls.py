"""Run one step's calls: logged before they start, drained at a stop, none left behind.

Consecutive calls run side by side, each on a thread of its own; an exclusive one runs alone, as a
barrier. The driver dispatches in the model's order and joins every thread before it goes on.
"""

import contextvars
import threading
from queue import SimpleQueue
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

import attrs

from syncagent.boundary.process import Processes
from syncagent.boundary.store.files import Places
from syncagent.boundary.tools.base import CallContext, Tool, ToolOutput
from syncagent.boundary.tools.text import clean
from syncagent.cancel import CancellationToken, Cancelled, Cause
from syncagent.errors import AgentClosed, StoreError, ToolError
from syncagent.log import events as ev
from syncagent.log.closers import NOT_DISPATCHED_TEXT
from syncagent.runtime.result import describe, error_of
from syncagent.runtime.session import Session
from syncagent.runtime.stopping import Stopping

__all__ = ["Calls", "EMIT_LIMIT"]

#: How many bytes of UTF-8 one call may show while it runs, with the note that there was more.
EMIT_LIMIT = 64 * 1024
EMIT_NOTE = "\n[... more output; it is no longer shown while the tool runs ...]\n"

#: A call whose body is about to run: its raw block, its tool, its values.
Ready = Tuple[Mapping[str, Any], Tool, Dict[str, Any]]


@attrs.define(kw_only=True)
class Calls:
    """The calls of one step. `escaped` keeps what a body raised that is no `Exception`, to be raised
    again where the turn is waited for."""

    session: Session
    tools: Mapping[str, Tool]
    processes: Processes
    turn: int
    step: int
    token: CancellationToken
    max_parallel: int
    stopping: Stopping
    escaped: List[BaseException] = attrs.field(factory=list)

    def run(self, blocks: List[Dict[str, Any]]) -> None:
        """Close every call with the result that was measured, or with one that says why there is none."""
        for group in self._groups(blocks):
            if len(group) == 1:
                ready = self._dispatch(group[0])
                if ready is not None:
                    contextvars.copy_context().run(self._execute, ready)
            else:
                self._run_side_by_side(group)

    def _groups(self, blocks: List[Dict[str, Any]]) -> Iterator[List[Dict[str, Any]]]:
        group: List[Dict[str, Any]] = []
        for block in blocks:
            tool = self.tools.get(block["name"])
            if tool is not None and tool.exclusive:
                if group:
                    yield group
                yield [block]
                group = []
            else:
                group.append(block)
        if group:
            yield group

    def _run_side_by_side(self, group: List[Dict[str, Any]]) -> None:
        threads: List[Optional[threading.Thread]] = []
        done: "SimpleQueue[None]" = SimpleQueue()
        busy = 0
        try:
            for block in group:
                if busy == self.max_parallel:
                    done.get()  # a body ends: at a stop all are woken, and drained
                    busy -= 1
                ready = self._dispatch(block)
                if ready is not None:
                    threads.append(self._start(ready, done))
                    busy += 1
        finally:
            for thread in threads:
                if thread is not None:
                    thread.join()

    def _start(self, ready: Ready, done: "SimpleQueue[None]") -> Optional[threading.Thread]:
        context = contextvars.copy_context()

        def work() -> None:
            try:
                context.run(self._execute, ready)
            except BaseException as exc:
                self.escaped.append(exc)
            finally:
                done.put(None)

        thread = threading.Thread(target=work, name=f"syncagent-call-{ready[1].name}")
        try:
            thread.start()
        except RuntimeError:  # the system has no more threads: then one after the other
            work()
            return None
        return thread

    # -- before the body --------------------------------------------------------------------------

    def _dispatch(self, block: Mapping[str, Any]) -> Optional[Ready]:
        """Log the tool/call and make it durable; None if the call is closed without its body."""
        tool = self.tools.get(block["name"])
        if self.token.cancelled:
            self._refuse(block, "ABORTED_BEFORE_DISPATCH", NOT_DISPATCHED_TEXT)
            return None
        if tool is None:
            known = ", ".join(sorted(self.tools)) or "none"
            text = f"There is no tool {clean(block['name'])!r}. Tools that can be called: {known}."
            self._refuse(block, "UNKNOWN_TOOL", text)
            return None
        try:
            values = tool.parse(block["arguments"])
        except ToolError as exc:
            error = error_of(exc, default="BAD_ARGUMENTS")
            self._refuse(block, error["code"], error["message"])
            return None
        except Exception as exc:  # of a check of the tool's own
            self._refuse(block, "BAD_ARGUMENTS", f"bad arguments for tool {tool.name!r}: {describe(exc)}")
            return None
        call = ev.ToolCall(
            turn=self.turn,
            step=self.step,
            call_id=block["id"],
            name=block["name"],
            arguments=block["arguments"],
            effect=tool.effect,
        )
        self.session.append(call)
        try:
            with self.stopping.at("checkpoint", self.token, call_id=block["id"]):
                self.session.flush(token=self.token)  # checkpoint: tool body
        except Cancelled:
            self._refuse(block, "ABORTED_BEFORE_DISPATCH", NOT_DISPATCHED_TEXT)
            return None
        except Exception as exc:  # also what is no error of the store: a call that stays open ends no turn
            text = f"This call was not run: what precedes it could not be made durable. {describe(exc)}"
            self._refuse(block, "CHECKPOINT_FAILED", text)
            return None
        return block, tool, values

    def _refuse(self, block: Mapping[str, Any], code: str, text: str) -> None:
        self._close(block, ToolOutput.from_text(text, error=code, message=text))

    # -- the body ---------------------------------------------------------------------------------

    def _execute(self, ready: Ready) -> None:
        block, tool, values = ready
        if self.token.cancelled:  # since its checkpoint
            self._refuse(block, "ABORTED_BEFORE_DISPATCH", NOT_DISPATCHED_TEXT)
            return
        emitter = _Emitter(self.session, self.turn, self.step, block["id"])
        try:
            output = self._attend(block["id"], tool, values, emitter)
        finally:
            emitter.close()
        self._close(block, output)

    def _attend(
        self, call_id: str, tool: Tool, values: Dict[str, Any], emitter: "_Emitter"
    ) -> ToolOutput:
        """Run the body, stop what it has started by itself when it is stopped, and say so."""
        with self.token.child() as token:
            context = CallContext(
                token=token,
                emit=emitter.emit,
                processes=self.processes,
                private=Places(self.session.path).private,
            )
            with self.stopping.at("tool", token, name=tool.name, call_id=call_id, body=True) as boundary:
                output = self._invoke(tool, values, context)
        stopped = boundary.stopped
        if not stopped:
            return output
        note = {"type": "text", "text": f"[stopped with the call: {stopped}]"}
        if output.error == "TIMEOUT":
            return attrs.evolve(output, content=[*output.content, note])
        text = _aborted(tool)
        return ToolOutput(content=[*output.content, note], error="ABORTED", message=text)

    def _invoke(self, tool: Tool, values: Dict[str, Any], context: CallContext) -> ToolOutput:
        """Whatever comes of the body is an output."""
        token = context.token
        late = f"tool {tool.name} ran longer than {tool.timeout} s"
        try:
            if tool.timeout is None:
                return _checked(tool.invoke(values, context))
            with token.deadline(tool.timeout, late):
                output = _checked(tool.invoke(values, context))
        except BaseException as exc:
            stopped = isinstance(exc, Cancelled) and token.text == late
            output = ToolOutput(content=[]) if stopped else self._failed(tool, exc)
        # The first one decides: only the call's own deadline leaves this text.
        if token.cause is Cause.TIMEOUT and token.text == late:
            text = f"The {late} and was stopped."
            told = output.error not in ("ABORTED", "ABORTED_BEFORE_DISPATCH")
            content = list(output.content) if told else []
            content = content + [{"type": "text", "text": text}]
            return ToolOutput(content=content, error="TIMEOUT", message=text)
        return output

    def _failed(self, tool: Tool, exc: BaseException) -> ToolOutput:
        if isinstance(exc, Cancelled) and self.token.cancelled:
            text = _aborted(tool)
            return ToolOutput.from_text(text, error="ABORTED", message=text)
        if isinstance(exc, ToolError):
            error = error_of(exc, default="TOOL_FAILED")
            return ToolOutput.from_text(error["message"], error=error["code"], message=error["message"])
        text = f"{tool.name} failed: {describe(exc)}"
        if isinstance(exc, MemoryError) or not isinstance(exc, (Exception, Cancelled, SystemExit)):
            self.escaped.append(exc)
            if isinstance(exc, KeyboardInterrupt):
                self.token.cancel(Cause.USER)
        return ToolOutput.from_text(text, error="TOOL_FAILED", message=text)

    def _close(self, block: Mapping[str, Any], output: ToolOutput) -> None:
        try:
            self.session.append(self._result(block, output))
        except (StoreError, AgentClosed):
            raise
        except Exception as exc:  # blocks of the tool's own making that the log can't hold
            text = f"{block['name']} returned what can't be kept: {describe(exc)}"
            self.session.append(self._result(block, ToolOutput.from_text(text, error="TOOL_FAILED")))

    def _result(self, block: Mapping[str, Any], output: ToolOutput) -> ev.ToolResult:
        error = None
        if output.error is not None:
            error = {"code": output.error, "message": output.message or output.text}
        return ev.ToolResult(
            turn=self.turn,
            step=self.step,
            call_id=block["id"],
            content=output.content,
            is_error=output.error is not None,
            error=error,
        )


def _aborted(tool: Tool) -> str:
    return f"The call was stopped while {tool.name} ran: part of its work may have been done."


def _checked(output: ToolOutput) -> ToolOutput:
    content: Any = output.content
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise TypeError("the content of a ToolOutput is a list of content blocks")
    return output


class _Emitter:
    """Logs a call's output while it runs, up to a limit; one that is used later says nothing any more."""

    def __init__(self, session: Session, turn: int, step: int, call_id: str) -> None:
        self._session = session
        self._where: Dict[str, Any] = {"turn": turn, "step": step, "call_id": call_id}
        self._lock = threading.Lock()  # keeps the pieces in order: held over the append
        self._open = True
        self._left = EMIT_LIMIT - len(EMIT_NOTE)

    def emit(self, text: str) -> bool:
        if not isinstance(text, str):
            raise TypeError(f"emit() takes a string, not {type(text).__name__}")
        text = clean(text)
        data = text.encode("utf-8")
        with self._lock:
            if not self._open or not data:
                return self._open
            if len(data) > self._left:
                # Cut at a character; the decoder drops the half of one.
                text, self._open = data[: self._left].decode("utf-8", "ignore") + EMIT_NOTE, False
            self._left -= len(data)
            self._session.append(ev.ToolChunk(text=text, **self._where))
            return self._open

    def close(self) -> None:
        with self._lock:
            self._open = False
