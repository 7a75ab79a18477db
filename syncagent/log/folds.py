"""Values that follow from the events alone: the transcript, what was dropped, what counted. Pure."""

from typing import Any, Dict, FrozenSet, Iterable, List, Mapping, Optional, Set, Tuple

import attrs

from syncagent.log import events as ev
from syncagent.log.events import Event, Message
from syncagent.log.grammar import check

__all__ = [
    "ConsumedWork",
    "SURFACE",
    "Transcript",
    "consumed_work",
    "derive_messages",
    "dropped",
    "last_user_message",
    "pending_inbox",
    "usage",
]

#: The types that make messages: all that `Transcript` reads.
SURFACE: FrozenSet[str] = frozenset(
    {"user/message", "assistant/message", "tool/result", "step/end", "turn/end"}
)

STOPPED_NOTICE = "[The turn before this message was stopped before it had finished.]"
INTERRUPTED_NOTICE = (
    "[The turn before this message was interrupted: the process that ran it died."
    " What it had recorded is above.]"
)


@attrs.define
class Transcript:
    """The messages that the model sees, kept up as events come.

    Results stand behind their call's message, in the model's order, whatever the order in which they
    were measured. After a turn that was stopped or interrupted, the next user message is preceded by
    a short notice to the model, which is made here and stored nowhere.
    """

    _done: List[Message] = attrs.field(factory=list)
    _calls: List[str] = attrs.field(factory=list)
    _results: Dict[str, Message] = attrs.field(factory=dict)
    _notice: Optional[Message] = None
    _spoken: bool = False  # a message entered in the open turn

    def add(self, event: Event) -> None:
        """Take in one event; those that are not of `SURFACE` change nothing."""
        body = event.body
        if isinstance(body, ev.UserMessage):
            if self._notice is not None:
                self._done.append(self._notice)
                self._notice = None
            self._done.append(body.message)
            self._spoken = True
        elif isinstance(body, ev.AssistantMessage):
            self._done.append(body.message)
            self._calls = [call["id"] for call in body.message.calls]
            self._spoken = True
        elif isinstance(body, ev.ToolResult):
            self._results[body.call_id] = _tool_message(body)
        elif isinstance(body, ev.StepEnd):
            self._done.extend(self._measured())
            self._calls, self._results = [], {}
        elif isinstance(body, ev.TurnEnd):
            self._end(body)

    def messages(self) -> List[Message]:
        """The transcript so far; of an open step, the results that are there."""
        return self._done + self._measured()

    def _measured(self) -> List[Message]:
        return [self._results[call_id] for call_id in self._calls if call_id in self._results]

    def _end(self, body: ev.TurnEnd) -> None:
        text = {"aborted": STOPPED_NOTICE, "interrupted": INTERRUPTED_NOTICE}.get(body.kind)
        if text is not None and self._spoken:
            content = [{"type": "text", "text": text}]
            self._notice = Message(id=f"notice-{body.turn}", role="user", content=content, source="syncagent")
        elif self._spoken:
            self._notice = None
        self._spoken = False


def _tool_message(body: ev.ToolResult) -> Message:
    block = {
        "type": "tool_result",
        "call_id": body.call_id,
        "content": body.content,
        "is_error": body.is_error,
    }
    return Message(id=f"r-{body.turn}-{body.step}-{body.call_id}", role="tool", content=[block])


def derive_messages(events: Iterable[Event]) -> List[Message]:
    """The transcript for the next request: user, assistant and tool messages, in the model's order."""
    transcript = Transcript()
    for event in events:
        transcript.add(event)
    return transcript.messages()


@attrs.frozen
class ConsumedWork:
    """`end`: the last turn/end that accounts for work, or None. `dropped_unrun`: whether accepted work
    was canceled after it."""

    end: Optional[Event] = None
    dropped_unrun: bool = False


def consumed_work(events: Iterable[Event]) -> ConsumedWork:
    """The last turn that accounts for work, and whether accepted work was dropped unrun since.

    A turn accounts for work if it entered a step, or claimed input and ended otherwise than completed.
    """
    end: Optional[Event] = None
    canceled = stepped = claimed = False
    for event in events:
        body = event.body
        if isinstance(body, ev.TurnStart):
            stepped = claimed = False
        elif isinstance(body, ev.StepStart):
            stepped = True
        elif isinstance(body, ev.InboxTaken) and body.ids:
            claimed = claimed or body.outcome == "claimed"
            canceled = canceled or body.outcome == "canceled"
        elif isinstance(body, ev.TurnEnd) and (stepped or (claimed and body.kind != "completed")):
            end, canceled = event, False
    return ConsumedWork(end, canceled)


def dropped(events: Iterable[Event]) -> List[Message]:
    """The messages whose last put was taken and that never entered, in the order taken.

    Left out: what is pending, replaced, or claimed by the turn that is open.
    """
    return [put.message for put in dropped_puts(events).values()]


def dropped_puts(events: Iterable[Event]) -> Dict[str, ev.InboxPut]:
    """The same with the puts that were lost, by message id."""
    waiting: Dict[str, ev.InboxPut] = {}
    lost: Dict[str, ev.InboxPut] = {}
    claims: Set[str] = set()
    entered: Set[str] = set()
    for event in events:
        body = event.body
        if isinstance(body, ev.InboxPut):
            waiting[body.message.id] = body
            lost.pop(body.message.id, None)
            claims.discard(body.message.id)
        elif isinstance(body, ev.InboxTaken):
            for key in body.ids:
                put = waiting.pop(key, None)
                if put is not None and body.outcome != "replaced":
                    lost[key] = put
                    if body.outcome == "claimed":
                        claims.add(key)
        elif isinstance(body, ev.UserMessage):
            entered.add(body.message.id)
        elif isinstance(body, ev.TurnEnd):
            claims.clear()
    return {key: put for key, put in lost.items() if key not in claims and key not in entered}


def pending_inbox(events: Iterable[Event]) -> Dict[str, List[Message]]:
    """What waits in the inbox, by target ("next_step", "next_turn"), in order. Raises `InvalidLog`."""
    state = check(events)
    return {target: [put.message for put in puts.values()] for target, puts in state.pending.items()}


def last_user_message(events: Iterable[Event]) -> Optional[Message]:
    """The user's message that entered last, or None."""
    last: Optional[Message] = None
    for event in events:
        if isinstance(event.body, ev.UserMessage):
            last = event.body.message
    return last


def usage(events: Iterable[Event]) -> Dict[str, int]:
    """The tokens of all messages together, by the names that the provider's usage has."""
    total: Dict[str, int] = {}
    for event in events:
        if isinstance(event.body, ev.AssistantMessage):
            add_usage(total, event.body.usage)
    return total


def add_usage(total: Dict[str, int], more: Mapping[str, Any]) -> None:
    """Add the whole numbers of one usage to a total."""
    pairs: Iterable[Tuple[str, Any]] = more.items()
    for key, value in pairs:
        if type(value) is int:
            total[key] = total.get(key, 0) + value
