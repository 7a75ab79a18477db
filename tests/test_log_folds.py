"""What follows from a log: the transcript, what was dropped, what counted, what waits."""

import pytest
from hypothesis import given
from logs import Log, calls, examples, prefixes, reasoning, valid_logs
from naive import naive_consumed_work, naive_dropped, naive_pending

from syncagent.errors import InvalidLog
from syncagent.log import (
    ConsumedWork,
    check,
    closers,
    consumed_work,
    derive_messages,
    dropped,
    last_user_message,
    pending_inbox,
    usage,
)
from syncagent.log.folds import SURFACE, Transcript


def blocked():
    """A turn that claimed a message and was refused before its first step."""
    return Log().put("u-1").turn().taken("u-1").end_turn("blocked")


# name: (log, number of the accounting turn, dropped unrun, ids of the dropped)
FOLDS = {
    "a blocked claim accounts, and its message is dropped": (blocked(), 1, False, ["u-1"]),
    "a completed claim without a step accounts for nothing":
        (Log().put("u-1").turn().taken("u-1").end_turn(), None, False, ["u-1"]),
    "a step without a claim accounts": (Log().turn().step().end_step().end_turn("error"), 1, False, []),
    "a turn that claimed nothing and was stopped": (Log().turn().end_turn("aborted"), None, False, []),
    "a claim of no message is no input": (Log().turn().taken().end_turn("aborted"), None, False, []),
    "an interrupted turn with a step": (Log().asking().repair(), 1, False, []),
    "an interrupted turn that had claimed; what it parked is not dropped":
        (Log().put("u-1").turn().taken("u-1").repair(), 1, False, []),
    "an interrupted turn that had claimed nothing": (Log().whole().turn().repair(), 1, False, []),
    "an interrupted turn after a drop absorbs it":
        (Log().whole().put("u-2").canceled("u-2").asking("u-3").repair(), 2, False, ["u-2"]),
    "an interrupted turn that did nothing absorbs nothing":
        (Log().whole().put("u-2").canceled("u-2").turn().repair(), 1, True, ["u-2"]),
    "a drop within the accounting turn is absorbed":
        (Log().put("u-2").asking().canceled("u-2").end_step().end_turn("aborted"), 1, False, ["u-2"]),
    "a drop within a turn that is still open counts":
        (Log().put("u-2").asking().cancel().canceled("u-2"), None, True, ["u-2"]),
    "a drop within a turn that did nothing counts":
        (Log().whole().put("u-2").turn().canceled("u-2").end_turn("aborted"), 1, True, ["u-2"]),
    "a drop counts also when it has been put back":
        (Log().whole().put("u-2").canceled("u-2").put("u-2"), 1, True, []),
    "put back, then run": (Log().put("u-1").canceled("u-1").whole("u-1"), 1, False, []),
    "put back, then dropped again: the order of the last taking":
        (Log().put("a").put("b").canceled("a", "b").put("a").canceled("a"), None, True, ["b", "a"]),
    "put back, then replaced": (Log().put("a").canceled("a").put("a").replaced("a"), None, True, []),
    "replaced, then the successor is dropped":
        (Log().put("a").replaced("a").put("a2").canceled("a2"), None, True, ["a2"]),
    "replaced, put again under its own id, dropped":
        (Log().put("a").replaced("a").put("a").canceled("a"), None, True, ["a"]),
    "a replacement in an open turn": (Log().put("a").asking().replaced("a").put("a2"), None, False, []),
    "a claim is no drop": (Log().whole().put("u-2").turn().taken("u-2"), 1, False, []),
    "what a claim left behind is dropped once its turn has ended":
        (Log().put("a").steer("b").turn().taken("b", "a").step().user("a").says("x").end_step().end_turn(),
         1, False, ["b"]),
    "claimed, not entered, put back, claimed by the open turn":
        (blocked().put("u-1").turn().taken("u-1"), 1, False, []),
    "claimed, not entered, put back, pending": (blocked().put("u-1"), 1, False, []),
    "a dropped message stays dropped while another is claimed":
        (Log().put("a").canceled("a").put("b").turn().taken("b"), None, True, ["a"]),
    "what has entered once is never dropped":
        (Log().whole("a").put("a").canceled("a"), 1, True, []),
    "next_step is emptied first":
        (Log().put("u").steer("s").cancel().canceled("s").canceled("u"), None, True, ["s", "u"]),
    "the inbox is emptied of nothing": (Log().whole().canceled(), 1, False, []),
    "a turn that reached the output limit":
        (Log().asking().says("x").end_step().end_turn("max_tokens"), 1, False, []),
}


@pytest.mark.parametrize("name", FOLDS)
def test_what_a_log_has_consumed_and_dropped(name):
    log, turn, unrun, ids = FOLDS[name]
    events = log.events
    check(events)
    work = consumed_work(events)
    assert (work.end and work.end.data["turn"], work.dropped_unrun) == (turn, unrun)
    assert work.end is None or work.end.type == "turn/end"
    assert [message.id for message in dropped(events)] == ids


def test_a_dropped_message_has_the_text_of_its_last_put():
    log = Log().put("a", "first").canceled("a").put("a", "second").canceled("a")
    assert [message.text for message in dropped(log.events)] == ["second"]


def test_a_log_without_turns_has_consumed_nothing():
    assert consumed_work([]) == ConsumedWork(None, False)


@examples(75)
@given(valid_logs(kills=0.04, noise=0.25))
def test_the_folds_say_what_a_search_of_the_whole_log_says(events):
    dicts = [event.to_dict() for event in events]
    for n, beginning in enumerate(prefixes(events)):
        work = consumed_work(iter(beginning))
        assert (work.end and work.end.body.turn, work.dropped_unrun) == naive_consumed_work(dicts[:n])
        assert [message.id for message in dropped(iter(beginning))] == naive_dropped(dicts[:n])
        waiting = {target: [m.id for m in found] for target, found in pending_inbox(beginning).items()}
        assert waiting == naive_pending(dicts[:n])


@examples(50)
@given(valid_logs(kills=0.04))
def test_no_accepted_message_is_lost(events):
    """Each one waits, has entered, was dropped or replaced, or is in the open turn's hands."""
    for beginning in prefixes(events):
        closed = beginning + closers(check(beginning))
        put = {e.body.message.id for e in closed if e.type == "inbox/put"}
        found = {message.id for queue in pending_inbox(closed).values() for message in queue}
        found |= {message.id for message in dropped(closed)}
        found |= {e.body.message.id for e in closed if e.type == "user/message"}
        takes = [e.body for e in closed if e.type == "inbox/taken"]
        found |= {id for body in takes if body.outcome == "replaced" for id in body.ids}
        assert put == found


# -- the transcript -----------------------------------------------------------------------------------


def said(events):
    """A transcript in short."""
    short = []
    for message in derive_messages(events):
        if message.role == "tool":
            (block,) = message.content
            short.append(("tool", block["call_id"]))
        else:
            short.append((message.role, message.text))
    return short


def unpaired(messages):
    """The first place where calls and results don't pair, or None. A strict provider's rule."""
    waiting = []
    for place, message in enumerate(messages):
        if message.role == "tool":
            if [block["call_id"] for block in message.content] != waiting[:1]:
                return place
            waiting.pop(0)
        elif waiting:
            return place
        else:
            waiting = [call["id"] for call in message.calls]
    return len(messages) if waiting else None


@examples(75)
@given(valid_logs(kills=0.04))
def test_the_transcript_of_every_closed_beginning_pairs_calls_with_results(events):
    for beginning in prefixes(events):
        closed = beginning + closers(check(beginning))
        messages = derive_messages(closed)
        assert unpaired(messages) is None
        ids = [message.id for message in messages]
        assert len(set(ids)) == len(ids)


@examples(50)
@given(valid_logs(kills=0.04))
def test_a_transcript_that_is_kept_up_is_the_one_that_is_derived(events):
    kept = Transcript()
    for n, event in enumerate(events, 1):
        kept.add(event)
        if n % 7 == 0:
            assert kept.messages() == derive_messages(events[:n])
    assert kept.messages() == derive_messages(event for event in events if event.type in SURFACE)


def test_results_stand_behind_their_message_in_the_models_order():
    log = Log().acting("c1", "c2", "c3").call("c1").call("c3").result("c3").result("c2", "DENIED")
    log.result("c1").end_step().step().says("done").end_step().end_turn()
    assert said(log.events) == [
        ("user", "hello"), ("assistant", "Let me look."), ("tool", "c1"), ("tool", "c2"), ("tool", "c3"),
        ("assistant", "done"),
    ]


def test_the_same_call_id_in_two_steps_gets_each_its_own_result():
    log = Log().acting("c1").call("c1").result("c1", said="one").end_step()
    log.step().says(*calls("c1")).call("c1").result("c1", said="two").end_step().end_turn()
    messages = [message for message in derive_messages(log.events) if message.role == "tool"]
    assert [message.content[0]["content"][0]["text"] for message in messages] == ["one", "two"]
    assert messages[0].id != messages[1].id


def test_a_result_tells_whether_it_is_an_error():
    log = Log().acting("c1", "c2").call("c1").result("c1").result("c2", "DENIED").end_step()
    results = [message.content[0] for message in derive_messages(log.events) if message.role == "tool"]
    assert [(block["type"], block["call_id"], block["is_error"]) for block in results] == [
        ("tool_result", "c1", False), ("tool_result", "c2", True)
    ]


def test_a_failed_attempt_is_not_in_the_transcript():
    log = Log().asking().chunk("wrong").retry().chunk("right").says("right").end_step().end_turn()
    assert said(log.events) == [("user", "hello"), ("assistant", "right")]
    assert said(Log().asking().chunk("wrong").end_step().end_turn("error").events) == [("user", "hello")]


def test_a_cut_prefix_is_in_the_next_request():
    log = Log().asking().chunk("Hel").repair().put("u-2").turn().taken("u-2").step().user("u-2", "and?")
    kinds = said(log.events)
    assert kinds[:2] == [("user", "hello"), ("assistant", "Hel")]
    assert kinds[-1] == ("user", "and?")


@pytest.mark.parametrize("kind, word", [("aborted", "stopped"), ("interrupted", "interrupted")])
def test_a_notice_tells_the_model_once_that_a_turn_was_stopped(kind, word):
    log = Log().asking()
    log = log.end_step().end_turn("aborted") if kind == "aborted" else log.repair()
    log.asking("u-2")
    notice = derive_messages(log.events)[1]
    assert (notice.role, notice.source) == ("user", "syncagent") and word in notice.text
    log.says("x").end_step().end_turn().asking("u-3")
    assert [message.source for message in derive_messages(log.events)].count("syncagent") == 1
    assert not any("[The turn" in event.text for event in log.events)


def test_turns_that_said_nothing_bring_no_notice_and_take_none_away():
    log = Log().turn().end_turn("aborted").turn().repair().asking("u-1")
    assert said(log.events) == [("user", "hello")]
    log.end_step().end_turn("aborted").turn().end_turn().asking("u-2")
    assert [message.source for message in derive_messages(log.events)] == [None, "syncagent", None]


def test_a_turn_in_between_in_which_only_the_model_spoke_takes_the_notice_away():
    log = Log().asking().end_step().end_turn("aborted")
    log.turn().step().says("by myself").end_step().end_turn().asking("u-2")
    assert [message.source for message in derive_messages(log.events)] == [None] * 3


def test_other_endings_bring_no_notice():
    for kind in ("completed", "error", "blocked", "max_tokens"):
        log = Log().asking().end_step().end_turn(kind).asking("u-2")
        assert len(derive_messages(log.events)) == 2


# -- the rest -----------------------------------------------------------------------------------------


def test_what_waits_stands_in_the_order_in_which_it_runs():
    log = Log().put("a").steer("b").put("c").steer("d").canceled("a").replaced("b").steer("b2")
    waiting = pending_inbox(log.events)
    assert list(waiting) == ["next_step", "next_turn"]
    assert [[message.id for message in queue] for queue in waiting.values()] == [["d", "b2"], ["c"]]


def test_what_waits_in_a_log_that_breaks_a_rule_is_not_told():
    with pytest.raises(InvalidLog):
        pending_inbox(Log().put("a").put("a").events)


def test_the_last_user_message_is_the_one_that_entered_last():
    log = Log().put("a", "one").put("b").turn().taken("a").step().user("a", "one")
    assert last_user_message(log.events).text == "one"
    assert last_user_message(Log().put("a").events) is None


def test_usage_adds_up_what_messages_used():
    log = Log().asking().chunk("x", usage={"input_tokens": 100})
    log.says("x", usage={"input_tokens": 3, "note": "n"})
    log.end_step().step().says(reasoning("y"), usage={"input_tokens": 4, "output_tokens": 5, "cached": True})
    assert usage(log.events) == {"input_tokens": 7, "output_tokens": 5}
    assert usage([]) == {}
