"""Checks of whole logs, with a message that shows where a broken one breaks."""

from collections import Counter
from typing import Any, Iterable, List, Mapping, Optional

from syncagent.errors import InvalidLog
from syncagent.log import Event, check

__all__ = ["assert_log"]

#: How many events before the broken one are shown.
_SHOWN = 8


def assert_log(log: Any, session: Optional[str] = None, *, balanced: bool = True) -> List[Event]:
    """Assert that a log keeps every rule, and return its events.

    `log` is a `Store`, with `session` the id (None: every session of the store), or an iterable of
    events, as objects or as dicts. With `balanced`, the default, no turn may be open at the end and
    each turn has one ending. Raises `AssertionError` with the last events before the broken one.
    """
    if not callable(getattr(log, "read", None)):
        return _assert_events(list(log), "the log", balanced)
    sessions = [session] if session is not None else [_id_of(entry) for entry in log.sessions()]
    events: List[Event] = []
    for name in sessions:
        events += _assert_events(list(log.read(name)), f"session {name!r}", balanced)
    return events


def _id_of(entry: Any) -> str:
    return str(entry["id"] if isinstance(entry, Mapping) else getattr(entry, "id", entry))


def _assert_events(given: Iterable[Any], name: str, balanced: bool) -> List[Event]:
    events = [Event.from_dict(event) if isinstance(event, Mapping) else event for event in given]
    try:
        state = check(events)
    except InvalidLog as exc:
        raise AssertionError(f"{name}: {exc}\n{_excerpt(events, exc.seq)}") from None
    if not balanced:
        return events
    if state.phase != "idle":
        where = f"turn {state.turn} is open, in {state.phase}"
        raise AssertionError(f"{name} ends too early: {where}\n{_excerpt(events, state.seq)}")
    started = Counter(event.data["turn"] for event in events if event.type == "turn/start")
    ended = Counter(event.data["turn"] for event in events if event.type == "turn/end")
    assert started == ended and set(ended.values()) <= {1}, (
        f"{name}: each turn has one ending, but starts are {dict(started)} and ends {dict(ended)}"
    )
    return events


def _excerpt(events: List[Event], seq: int) -> str:
    """The events up to `seq`, one a line, the last one marked."""
    at = next((place for place, event in enumerate(events) if event.seq == seq), len(events) - 1)
    lines = []
    for event in events[max(0, at - _SHOWN) : at + 1]:
        mark = ">" if event is events[at] else " "
        text = event.text
        lines.append(f"{mark} {event.seq:>6} {event.type:<18} {text[:100]}{'…' if len(text) > 100 else ''}")
    return "\n".join(lines)
