"""Events as lines for people: turns, steps, what was said, called and measured, and how it ended.

It judges no log: it shows what is there, in the order in which it is there. All text of strangers is
made printable and shortened here.
"""

from typing import Any, Callable, Dict, List, Mapping, Type

from syncagent.log import Event, Message
from syncagent.log import events as ev
from syncagent.log.folds import add_usage
from syncagent.surface.cli.screen import Screen
from syncagent.surface.cli.text import one_line, shortened, when

__all__ = ["Renderer"]


class Renderer:
    """Writes the lines of one session; feed it with `show`, then `end`."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._waiting: Dict[str, ev.InboxPut] = {}  # messages that no turn has taken
        self._names: Dict[str, str] = {}  # call id -> tool, of the open step
        self._streamed: Dict[str, List[str]] = {}  # what the open attempt has shown, by kind
        self._output: Dict[str, List[str]] = {}  # what running calls have shown
        self._open_turn = 0
        self._usage: Dict[str, int] = {}  # of the open turn

    def head(self, text: str) -> None:
        """A line that stands out on a terminal."""
        self._screen.heading(text)

    def show(self, event: Event) -> None:
        """The lines of the next event, which may be none."""
        shown = _SHOWN.get(type(event.body))
        if shown is not None:
            shown(self, event, event.body)
        elif isinstance(event.body, ev.Unknown):
            self._line(2, f"event of another version: {one_line(event.type, 80)}", event)

    def end(self, *, live: bool) -> None:
        """What is still open after the last event."""
        self._streamed_lines("so far")
        for call_id, pieces in self._output.items():
            self._text(4, f"output so far of {self._name(call_id)}:", "".join(pieces))
        if self._open_turn:
            why = "it runs" if live else "its process died: the next open, or `syncagent repair`, closes it"
            self._line(2, f"turn {self._open_turn} is open; {why}")
        for put in self._waiting.values():
            self._text(0, f"waiting ({put.target}):", put.message.text)

    # -- lines ------------------------------------------------------------------------------------

    def _line(self, indent: int, text: str, *marks: Any) -> None:
        """One line whose text is printable already; an event in `marks` says who wrote it."""
        by_repair = any(isinstance(mark, Event) and mark.body.synthetic for mark in marks)
        self._screen.line(" " * indent + text + (" [written by repair]" if by_repair else ""))

    def _text(self, indent: int, label: str, text: str, *marks: Any) -> None:
        """A label and a text of a stranger behind it, or below it if it has several lines."""
        shown = shortened(text)
        if "\n" not in shown and len(shown) <= 100:
            self._line(indent, f"{label} {shown}".rstrip(), *marks)
            return
        self._line(indent, label, *marks)
        for line in shown.split("\n"):
            self._line(indent + 2, line)

    def _name(self, call_id: str) -> str:
        return one_line(self._names.get(call_id, call_id), 80)

    def _streamed_lines(self, why: str) -> None:
        for kind, pieces in self._streamed.items():
            self._text(4, f"{'assistant' if kind == 'text' else kind} ({why}):", "".join(pieces))
        self._streamed = {}

    # -- events -----------------------------------------------------------------------------------

    def _put(self, event: Event, body: ev.InboxPut) -> None:
        self._waiting[body.message.id] = body
        if body.synthetic:
            self._text(2, "back in the inbox:", body.message.text, event)

    def _taken(self, event: Event, body: ev.InboxTaken) -> None:
        for key in body.ids:
            put = self._waiting.pop(key, None)
            if body.outcome != "claimed" and put is not None:
                word = "dropped unrun" if body.outcome == "canceled" else body.outcome
                self._text(2, f"{word}:", put.message.text, event)

    def _cancel(self, event: Event, body: ev.CancelRequested) -> None:
        via = f", via {one_line(body.via, 40)}" if body.via else ""
        self._line(2, f"stop asked for: {one_line(body.cause, 40)}{via}", event)

    def _settled(self, event: Event, body: ev.CancelSettled) -> None:
        where = [
            one_line(f"{entry.get('boundary', '?')} {_milliseconds(entry.get('ms'))}", 120)
            for entry in body.boundaries
        ]
        at = f" ({'; '.join(where)})" if where else ""
        self._line(2, f"stopped after {_milliseconds(body.ms)}{at}", event)

    def _turn_start(self, event: Event, body: ev.TurnStart) -> None:
        self._open_turn, self._usage = body.turn, {}
        self._screen.line("")
        self.head(f"turn {body.turn}  {when(event.time)}")

    def _step_start(self, event: Event, body: ev.StepStart) -> None:
        self._names, self._output, self._streamed = {}, {}, {}
        self._line(2, f"step {body.step}")

    def _user(self, event: Event, body: ev.UserMessage) -> None:
        source = f" (by {one_line(body.message.source, 40)})" if body.message.source else ""
        self._text(4, f"user{source}:", _all_text(body.message), event)

    def _header(self, event: Event, body: ev.RequestHeader) -> None:
        names = ", ".join(str(tool.get("name")) for tool in body.tools if isinstance(tool, dict))
        tools = f"; tools: {names}" if names else ""
        self._line(4, f"model: {one_line(f'{body.provider}:{body.model}{tools}')}", event)
        if body.system:
            self._text(4, "system:", body.system)

    def _chunk(self, event: Event, body: ev.AssistantChunk) -> None:
        if body.chunk["kind"] != "tool_call":
            self._streamed.setdefault(body.chunk["kind"], []).append(body.chunk["text"])

    def _retry(self, event: Event, body: ev.ModelRetry) -> None:
        self._streamed_lines("of a failed attempt, not kept")
        why = one_line(f"{body.error['code']}: {body.error.get('message', '')}")
        self._line(4, f"attempt {body.attempt} after {body.delay_ms / 1000:.1f} s: {why}", event)

    def _assistant(self, event: Event, body: ev.AssistantMessage) -> None:
        self._streamed = {}
        add_usage(self._usage, body.usage)
        cut = " (cut)" if body.interrupted else ""
        for block in body.message.content:
            kind = block.get("type")
            if kind == "tool_call":
                self._names[block["id"]] = block["name"]
                asked = one_line(f"{block['name']} {block['arguments']}", 300)
                self._line(4, f"asks for {asked}")
            elif kind in ("text", "reasoning"):
                who = "assistant" if kind == "text" else "reasoning"
                self._text(4, f"{who}{cut}:", block["text"], event)
            else:
                self._line(4, f"a block of type {one_line(str(kind), 40)}", event)

    def _approval_asked(self, event: Event, body: ev.ApprovalAsked) -> None:
        self._line(4, f"approval asked for {self._name(body.call_id)}", event)

    def _approval_decided(self, event: Event, body: ev.ApprovalDecided) -> None:
        self._line(4, f"approval of {self._name(body.call_id)}: {body.decision}", event)

    def _call(self, event: Event, body: ev.ToolCall) -> None:
        self._names[body.call_id] = body.name
        self._line(4, f"runs {one_line(body.name, 80)} ({body.effect})", event)

    def _tool_chunk(self, event: Event, body: ev.ToolChunk) -> None:
        self._output.setdefault(body.call_id, []).append(body.text)

    def _result(self, event: Event, body: ev.ToolResult) -> None:
        self._output.pop(body.call_id, None)
        code = f" {one_line(body.code or 'error', 40)}" if body.is_error else ""
        text = "\n".join(str(block.get("text", "")) for block in body.content)
        self._text(4, f"result of {self._name(body.call_id)}{code}:", text, event)

    def _child_started(self, event: Event, body: ev.SubagentStarted) -> None:
        self._line(4, f"child session {one_line(body.session, 80)} begins ({one_line(body.mode, 40)})", event)

    def _child_ended(self, event: Event, body: ev.SubagentEnded) -> None:
        reason = body.reason if isinstance(body.reason, str) else body.reason["kind"]
        self._line(4, f"child session {one_line(body.session, 80)} ends: {one_line(reason, 40)}", event)

    def _gap(self, event: Event, body: ev.LogGap) -> None:
        self._line(4, f"here {body.rows} rows of the log are lost", event)

    def _step_end(self, event: Event, body: ev.StepEnd) -> None:
        self._streamed_lines("of a failed attempt, not kept")

    def _turn_end(self, event: Event, body: ev.TurnEnd) -> None:
        self._open_turn = 0
        error = body.reason.get("error")
        why = f": {one_line(_error_text(error))}" if isinstance(error, dict) else ""
        spent = ", ".join(f"{number} {one_line(key, 40)}" for key, number in self._usage.items())
        self._line(2, f"ended {body.kind}{why}{f' ({spent})' if spent else ''}", event)


def _milliseconds(value: Any) -> str:
    return f"{value:.1f} ms" if isinstance(value, (int, float)) else "?"


def _error_text(error: Mapping[str, Any]) -> str:
    return f"{error.get('code')}: {error.get('message', '')}"


def _all_text(message: Message) -> str:
    """The message's text, and a word for each block that is none."""
    parts = [str(block.get("text", f"[{block.get('type')}]")) for block in message.content]
    return "\n".join(parts)


_SHOWN: Mapping[Type[ev.Body], Callable[[Renderer, Event, Any], None]] = {
    ev.InboxPut: Renderer._put,
    ev.InboxTaken: Renderer._taken,
    ev.CancelRequested: Renderer._cancel,
    ev.CancelSettled: Renderer._settled,
    ev.TurnStart: Renderer._turn_start,
    ev.StepStart: Renderer._step_start,
    ev.UserMessage: Renderer._user,
    ev.RequestHeader: Renderer._header,
    ev.AssistantChunk: Renderer._chunk,
    ev.ModelRetry: Renderer._retry,
    ev.AssistantMessage: Renderer._assistant,
    ev.ApprovalAsked: Renderer._approval_asked,
    ev.ApprovalDecided: Renderer._approval_decided,
    ev.ToolCall: Renderer._call,
    ev.ToolChunk: Renderer._tool_chunk,
    ev.ToolResult: Renderer._result,
    ev.SubagentStarted: Renderer._child_started,
    ev.SubagentEnded: Renderer._child_ended,
    ev.LogGap: Renderer._gap,
    ev.StepEnd: Renderer._step_end,
    ev.TurnEnd: Renderer._turn_end,
}
