"""Shows a turn while it runs: it follows the log on a thread of its own, and is joined.

It knows events and the screen. It starts nothing and stops nothing but its own watching; what to do
when nobody reads the answer any more is said to `on_lost`.
"""

import threading
from typing import Any, Callable, Dict, Iterator, Optional

from syncagent.errors import StoreError
from syncagent.log import Event
from syncagent.log import events as ev
from syncagent.surface.cli.screen import OutputFailed, Screen
from syncagent.surface.cli.text import one_line, printable

__all__ = ["Printer"]


class Printer:
    """Prints the events of `source` until it ends: the answer, notices, or with `lines` the events.

    `answer` says whether the answer's text goes to standard output as it comes. `retries` is how many
    there may be. `on_lost()` is called once if standard output can't be written any more. `failure`
    then holds why.
    """

    def __init__(
        self,
        source: Iterator[Event],
        *,
        screen: Screen,
        answer: bool,
        lines: bool,
        retries: int,
        on_lost: Callable[[], object],
    ) -> None:
        self.failure: Optional[OutputFailed] = None
        self._source = source
        self._screen = screen
        self._answer = answer
        self._lines = lines
        self._retries = retries
        self._on_lost = on_lost
        self._asked: Optional[str] = None  # the id of the message that this command has sent
        self._names: Dict[str, str] = {}  # call id -> tool, of the open step
        self._held = ""  # a carriage return whose line end may come in the next chunk
        self._thread = threading.Thread(target=self._run, name="syncagent-printer")

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        """Wait until all is printed. The source must have ended, as `follow` does with its agent."""
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            for event in self._source:
                self._show(event)
            if self._answer:
                self._end_line()
        except OutputFailed as exc:
            self.failure = exc
            self._on_lost()
        except StoreError:
            pass  # whoever waits for the turn gets it too, and says so

    def _show(self, event: Event) -> None:
        if self._lines:
            self._screen.json(event.to_dict(), flush=True)
        body = event.body
        if isinstance(body, ev.AssistantChunk):
            if self._answer and body.chunk["kind"] == "text":
                self._text(body.chunk["text"])
            return
        if self._answer and isinstance(body, (ev.ModelRetry, ev.AssistantMessage, ev.StepEnd, ev.TurnEnd)):
            self._end_line()
        text = self._notice(body)
        if text is not None:
            self._screen.notice(text)

    def _text(self, text: str) -> None:
        text = self._held + text
        self._held = "\r" if text.endswith("\r") else ""
        self._screen.write(printable(text[:-1] if self._held else text), flush=True)

    def _end_line(self) -> None:
        held, self._held = self._held, ""
        self._screen.write(printable(held))
        self._screen.end_line()

    def _notice(self, body: Any) -> Optional[str]:
        if isinstance(body, ev.InboxPut):
            self._asked = self._asked or body.message.id
        if isinstance(body, ev.UserMessage) and body.message.id != self._asked:
            return f"turn {body.turn} takes up a message that has waited: {body.message.text}"
        if isinstance(body, ev.ModelRetry):
            why = f"{body.error['code']}: {body.error.get('message', '')}"
            return f"retry {body.attempt - 1} of {self._retries} in {body.delay_ms / 1000:.1f} s: {why}"
        if isinstance(body, ev.AssistantMessage):
            self._names = {call["id"]: call["name"] for call in body.message.calls}
        if isinstance(body, ev.ToolCall):
            return f"{one_line(body.name, 80)} {body.arguments}"
        if isinstance(body, ev.ToolResult):
            return f"{one_line(self._names.get(body.call_id, body.call_id), 80)} {_outcome(body)}"
        return None


def _outcome(body: ev.ToolResult) -> str:
    if body.error is not None:
        return f"failed: {body.error['code']}: {body.error.get('message', '')}"
    size = sum(len(block["text"]) for block in body.content if block.get("type") == "text")
    return f"done, {size} character{'s' if size != 1 else ''}"
