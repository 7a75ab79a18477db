"""Events to rows of a table and back: a run of stream chunks of one block is one row.

It knows the text of events, not the database. Pure. A row of `n` events, n > 1, holds the chunks of
one block; its data is that of the first chunk with all texts in a list, and with `ms`, the time of
each later one after the one before, left out where that is always 0:

    {"turn":3,"step":7,"attempt":1,"chunk":{"kind":"text","text":["Hel","lo"]},"ms":[12]}

The texts are cut and joined as they stand, never parsed, so each event's JSON text comes back
character by character.
"""

import json
import re
from typing import Any, List, Optional, Sequence, Tuple

from syncagent.errors import InvalidLog
from syncagent.log import Event
from syncagent.log.events import AssistantChunk
from syncagent.log.folds import SURFACE

__all__ = ["DamagedRow", "Row", "pack", "unpack"]

#: seq of the first event, number of events, type, time of the first, 1 or None, JSON text.
Row = Tuple[int, int, str, int, Optional[int], str]

#: The most events of one row, and about the most characters: a row is read and unpacked as a whole.
MAX_RUN = 1024
MAX_TEXT = 65536

_HEAD = r'(\{"turn":\d+,"step":\d+,"attempt":\d+,"chunk":\{"kind":"[a-z_]+","text":)'
_STRING = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_TAIL = r'((?:,"index":\d+)?\})'
_PLAIN = re.compile(f"{_HEAD}({_STRING}){_TAIL}\\}}")
_PACKED = re.compile(rf'{_HEAD}\[({_STRING}(?:,{_STRING})*)\]{_TAIL}(?:,"ms":\[([\d,]+)\])?\}}')
_STRINGS = re.compile(_STRING)


class DamagedRow(Exception):
    """The row at `seq` can't be what was written."""

    def __init__(self, seq: int, text: str) -> None:
        super().__init__(seq, text)
        self.seq = seq
        self.text = text


def pack(events: Sequence[Event]) -> List[Row]:
    """The rows of consecutive events of one session."""
    rows: List[Row] = []
    run: List[Tuple[Event, str]] = []  # chunks of one block, with their texts
    block: Optional[Tuple[str, str]] = None  # what all texts of the run stand between
    size = 0
    for event in events:
        match = _PLAIN.fullmatch(event.text) if event.type == AssistantChunk.type else None
        if match is None:
            _end_run(rows, run, block)
            surface = 1 if event.type in SURFACE else None
            rows.append((event.seq, 1, event.type, event.time, surface, event.text))
            run, block = [], None
            continue
        if (match[1], match[3]) != block or len(run) >= MAX_RUN or size >= MAX_TEXT:
            _end_run(rows, run, block)
            run, block, size = [], (match[1], match[3]), 0
        run.append((event, match[2]))
        size += len(match[2])
    _end_run(rows, run, block)
    return rows


def _end_run(rows: List[Row], run: List[Tuple[Event, str]], block: Optional[Tuple[str, str]]) -> None:
    if not run or block is None:
        return
    first = run[0][0]
    if len(run) == 1:
        rows.append((first.seq, 1, first.type, first.time, None, first.text))
        return
    head, tail = block
    texts = ",".join(text for _, text in run)
    times = [event.time for event, _ in run]
    steps = [after - before for before, after in zip(times, times[1:])]
    ms = ',"ms":[' + ",".join(map(str, steps)) + "]" if any(steps) else ""
    rows.append((first.seq, len(run), first.type, first.time, None, f"{head}[{texts}]{tail}{ms}}}"))


def unpack(seq: Any, n: Any, type: Any, time: Any, data: Any) -> List[Event]:
    """The events of one row. Raises `DamagedRow` for what no writer wrote."""
    if not isinstance(seq, int):
        raise DamagedRow(0, "its seq is no number")
    if not (isinstance(n, int) and n >= 1 and isinstance(type, str) and isinstance(time, int)):
        raise DamagedRow(seq, "its columns are not of their types")
    if not isinstance(data, str):
        raise DamagedRow(seq, "its data is no text")
    if n > 1:
        return _unpack_run(seq, n, type, time, data)
    try:
        return [Event.from_text(seq, time, type, data)]
    except InvalidLog as exc:
        raise DamagedRow(seq, exc.text) from None


def _unpack_run(seq: int, n: int, type: str, time: int, data: str) -> List[Event]:
    match = _PACKED.fullmatch(data) if type == AssistantChunk.type else None
    if match is None:
        raise DamagedRow(seq, f"its data is no run of {n} chunks")
    head, texts, tail, ms = match[1], _STRINGS.findall(match[2]), match[3], match[4]
    steps = [int(step) for step in ms.split(",")] if ms is not None else [0] * (n - 1)
    if len(texts) != n or len(steps) != n - 1:
        raise DamagedRow(seq, f"its data holds {len(texts)} chunks, not {n}")
    try:
        first = Event.from_text(seq, time, type, f"{head}{texts[0]}{tail}}}").body
        values = json.loads("[" + ",".join(texts) + "]")
    except (InvalidLog, ValueError):
        raise DamagedRow(seq, "its data is no JSON of a chunk") from None
    assert isinstance(first, AssistantChunk)
    events: List[Event] = []
    for index, (text, value) in enumerate(zip(texts, values)):
        time += steps[index - 1] if index else 0
        body = AssistantChunk(
            turn=first.turn, step=first.step, attempt=first.attempt, chunk={**first.chunk, "text": value}
        )
        events.append(Event(seq=seq + index, time=time, body=body, _text=f"{head}{text}{tail}}}"))
    return events
