"""Says in words what a log gained, event by event. It knows events and nothing of who wrote them."""

from typing import Any, Callable, Dict, Iterable, Optional

from syncagent.log import Event
from syncagent.log import events as ev

__all__ = ["describe", "narrate"]

WIDTH = 64


def narrate(
    events: Iterable[Event], say: Callable[[str], None], *, until: Optional[Callable[[Event], bool]] = None
) -> int:
    """Say each event; stop after the first one for which `until` holds. Returns the last seq."""
    last = 0
    for event in events:
        last = event.seq
        mark = "*" if event.body.synthetic else "+"
        say(f"   {mark} {event.seq:>3}  {event.type:<18} {describe(event)}".rstrip())
        if until is not None and until(event):
            break
    return last


def describe(event: Event) -> str:
    """The gist of an event in one line of plain text."""
    body = event.body
    describer = DESCRIBERS.get(type(body))
    return _short(describer(body)) if describer is not None else ""


def _short(text: str) -> str:
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"


def _result(body: ev.ToolResult) -> str:
    text = "".join(block.get("text", "") for block in body.content)
    return f"{body.call_id}: {body.code or 'ok'}: {text}"


def _answer(body: ev.AssistantMessage) -> str:
    calls = ", ".join(f"{call['id']} {call['name']}" for call in body.message.calls)
    text = f"“{body.message.text}”" if body.message.text else ""
    cut = "cut, kept: " if body.interrupted else ""
    return cut + text + (f" calls {calls}" if calls else "")


def _chunk(body: ev.AssistantChunk) -> str:
    chunk = body.chunk
    if not chunk["text"] and chunk.get("usage"):
        return "usage " + ", ".join(f"{key} {value}" for key, value in chunk["usage"].items())
    return f"{chunk['kind']} {chunk.get('name') or ''}“{chunk['text']}”"


DESCRIBERS: Dict[type, Callable[[Any], str]] = {
    ev.InboxPut: lambda body: f"“{body.message.text}” waits for {body.target}",
    ev.InboxTaken: lambda body: f"{', '.join(body.ids)} {body.outcome}",
    ev.CancelRequested: lambda body: f"cause {body.cause}, via {body.via}",
    ev.TurnStart: lambda body: f"turn {body.turn}",
    ev.StepStart: lambda body: f"step {body.step}",
    ev.UserMessage: lambda body: f"“{body.message.text}”",
    ev.RequestHeader: lambda body: f"model {body.model}, {len(body.tools)} tools",
    ev.AssistantChunk: _chunk,
    ev.ModelRetry: lambda body: f"attempt {body.attempt} after {body.delay_ms} ms",
    ev.AssistantMessage: _answer,
    ev.ToolCall: lambda body: f"{body.call_id}: {body.name} {body.arguments}",
    ev.ToolChunk: lambda body: f"{body.call_id}: {body.text}",
    ev.ToolResult: _result,
    ev.StepEnd: lambda body: f"step {body.step}",
    ev.TurnEnd: lambda body: f"turn {body.turn}: {body.kind}",
}
