"""The check of whole logs."""

from types import SimpleNamespace

import pytest

from syncagent.log import Event
from syncagent.log.events import Unknown
from syncagent.testing import assert_log

MESSAGE = {"id": "u", "role": "user", "content": [{"type": "text", "text": "go"}]}


def events(*entries):
    return [
        {"seq": seq, "time": seq, "type": type, "data": data} for seq, (type, data) in enumerate(entries, 1)
    ]


TURN = events(
    ("inbox/put", {"target": "next_turn", "message": MESSAGE, "wake": True}),
    ("turn/start", {"turn": 1}),
    ("inbox/taken", {"ids": ["u"], "outcome": "claimed"}),
    ("step/start", {"turn": 1, "step": 1}),
    ("user/message", {"turn": 1, "step": 1, "message": MESSAGE}),
    ("step/end", {"turn": 1, "step": 1}),
    ("turn/end", {"turn": 1, "reason": {"kind": "completed"}}),
)


class Log:
    """Anything with the read side of a store."""

    def __init__(self, **logs):
        self.logs = logs

    def sessions(self):
        return [SimpleNamespace(id=name) for name in sorted(self.logs)]

    def read(self, session, since=0):
        return [Event.from_dict(event) for event in self.logs[session]]


def test_a_whole_log_passes_and_is_returned_as_events():
    found = assert_log(TURN)
    assert [event.type for event in found][-1] == "turn/end"
    assert assert_log(found) == found


def test_an_open_turn_fails_unless_told():
    with pytest.raises(AssertionError, match="turn 1 is open, in asking"):
        assert_log(TURN[:5])
    assert len(assert_log(TURN[:5], balanced=False)) == 5


def test_a_broken_rule_is_named_and_shown_in_its_place():
    broken = TURN[:3] + [{**TURN[6], "seq": 4}]
    broken[3]["data"] = {"turn": 2, "reason": {"kind": "completed"}}
    with pytest.raises(AssertionError, match=r"event 4 breaks L\d+(.|\n)*\n>      4 turn/end"):
        assert_log(broken, balanced=False)


def test_what_is_no_event_is_a_broken_rule_too():
    with pytest.raises(AssertionError, match="event 3 breaks L1(.|\n)*turn/start"):
        assert_log([*TURN[:2], {"seq": 3, "time": 3, "type": "step/start", "data": {}}])
    odd = Event(seq=1, time=1, body=Unknown(name="odd", extra={"ignorable": True, "x": {1}}))
    with pytest.raises(AssertionError, match="event 1 breaks L1(.|\n)*data that is no JSON"):
        assert_log([odd])


def test_a_store_is_checked_session_by_session():
    store = Log(good=TURN, open=TURN[:5])
    assert len(assert_log(store, "good")) == 7
    with pytest.raises(AssertionError, match="session 'open' ends too early"):
        assert_log(store)
    assert len(assert_log(store, balanced=False)) == 12


def test_an_empty_log_is_balanced():
    assert assert_log([]) == []
