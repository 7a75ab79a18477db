"""Checks of whole logs, with a message that shows where a broken one breaks."""

from typing import Any, Iterable, List, Mapping, Optional

from syncagent.errors import InvalidLog
from syncagent.log import Event, check

__all__ = ["assert_log"]

#: How many events before the broken one are shown.
_SHOWN = 8


def assert_log(log: Any, session: Optional[str] = None, *, balanced: bool = True) -> List[Event]:
    """Assert that a log keeps every rule, and return its events.

    `log` is a `Store`, with `session` the id (None: every session of the store), or an iterable of
    events, as objects or as dicts. With `balanced`, the default, no turn may be open at the end.
    Raises `AssertionError` with the last events up to the broken one.
    """
    if not callable(getattr(log, "read", None)):
        return _assert_events(list(log), "the log", balanced)
    sessions = [session] if session is not None else [info.id for info in log.sessions()]
    events: List[Event] = []
    for name in sessions:
        events += _assert_events(list(log.read(name)), f"session {name!r}", balanced)
    return events


def _assert_events(given: Iterable[Any], name: str, balanced: bool) -> List[Event]:
    events: List[Event] = []
    try:
        for event in given:
            events.append(Event.from_dict(event) if isinstance(event, Mapping) else event)
        state = check(events)
    except InvalidLog as exc:
        raise AssertionError(f"{name}: {exc}\n{_excerpt(events, exc.seq)}") from None
    if balanced and state.phase != "idle":
        where = f"turn {state.turn} is open, in {state.phase}"
        raise AssertionError(f"{name} ends too early: {where}\n{_excerpt(events, state.seq)}")
    return events


def _excerpt(events: List[Event], seq: int) -> str:
    """The events up to `seq`, one a line, the last one marked."""
    at = next((place for place, event in enumerate(events) if event.seq == seq), len(events) - 1)
    lines = []
    for event in events[max(0, at - _SHOWN) : at + 1]:
        mark = ">" if event is events[at] else " "
        text = _text(event)
        lines.append(f"{mark} {event.seq:>6} {event.type:<18} {text[:100]}{'…' if len(text) > 100 else ''}")
    return "\n".join(lines)


def _text(event: Event) -> str:
    try:
        return event.text
    except InvalidLog:
        return f"({event.type} with data that is no JSON)"
