"""What the demo says of an event."""

from typing import List

from syncagent.log import Event
from syncagent.surface.demo.narrate import describe, narrate


def event(seq: int, type: str, **data: object) -> Event:
    return Event.from_dict({"seq": seq, "time": 1, "type": type, "data": data})


def test_a_line_holds_the_number_the_type_and_the_gist() -> None:
    said: List[str] = []
    narrate([event(7, "turn/end", turn=3, reason={"kind": "aborted"})], said.append)
    assert said == ["   +   7  turn/end           turn 3: aborted"]


def test_what_repair_wrote_is_marked() -> None:
    said: List[str] = []
    narrate([event(7, "turn/end", turn=3, reason={"kind": "interrupted"}, synthetic=True)], said.append)
    assert said[0].startswith("   *   7")


def test_it_stops_behind_the_event_that_was_asked_for() -> None:
    said: List[str] = []
    events = [event(n, "turn/start", turn=n) for n in range(1, 5)]
    assert narrate(events, said.append, until=lambda e: e.seq == 2) == 2
    assert len(said) == 2


def test_control_characters_and_long_texts_are_tamed() -> None:
    message = {"id": "a", "role": "user", "content": [{"type": "text", "text": "\x1b[2J\nx" * 100}]}
    line = describe(event(1, "user/message", turn=1, step=1, message=message))
    assert "\x1b" not in line and "\n" not in line and len(line) <= 64


def test_a_chunk_of_usage_says_so() -> None:
    chunk = {"kind": "text", "text": "", "usage": {"input_tokens": 3}}
    said = describe(event(1, "assistant/chunk", turn=1, step=1, attempt=1, chunk=chunk))
    assert said == "usage input_tokens 3"
