"""A log for people: what was said, called, measured and left open, and who wrote it."""

import io

import pytest
from commands import NASTY, harmless
from hypothesis import given
from log_writer import Log, calls, reasoning, words
from logs import examples, valid_logs

from syncagent.surface.cli.render import Renderer
from syncagent.surface.cli.screen import Screen


def rendered(events, *, live=False):
    screen = Screen()
    screen._out = io.StringIO()
    renderer = Renderer(screen)
    for event in events:
        renderer.show(event)
    renderer.end(live=live)
    return screen._out.getvalue()


def lines(log, **options):
    return [line.strip() for line in rendered(log.events, **options).splitlines() if line.strip()]


def test_a_turn_is_told_by_steps():
    log = Log().asking().header().says("Let me look.", *calls("c1")).call("c1").output("c1").result("c1")
    log.end_step().step().chunk("Three.").says(reasoning("easy"), "Three.").end_step().end_turn()
    assert lines(log)[1:] == [
        "step 1",
        "user: hello",
        "model: openai:m-1",
        "system: Be brief.",
        "assistant: Let me look.",
        'asks for bash {"command":"ls"}',
        "runs bash (write)",
        "result of bash: ok",
        "step 2",
        "reasoning: easy",
        "assistant: Three.",
        "ended completed (20 input_tokens, 10 output_tokens)",
    ]
    assert lines(log)[0].startswith("turn 1  20")


def test_an_answer_that_was_cut_and_a_stop_are_marked():
    log = Log().asking().chunk("half").cancel(via="sigint").says("half", interrupted=True).end_step()
    log.end_turn("aborted")
    shown = lines(log)
    assert "stop asked for: user, via sigint" in shown
    assert "assistant (cut): half" in shown
    assert "ended aborted (10 input_tokens, 5 output_tokens)" in shown


def test_a_stop_shows_how_long_it_took_and_where():
    log = Log().acting("c1").call("c1").cancel().result("c1", "ABORTED")
    log.settled(ms=3.21, boundaries=[{"boundary": "tool \x1b[2J", "ms": 3, "call_id": "c1"}, {"other": 1}])
    assert "stopped after 3.2 ms (tool \\x1b[2J 3.0 ms; ? ?)" in lines(log.end_step().end_turn("aborted"))
    assert "stopped after 1.5 ms" in lines(Log().turn().settled().end_turn("aborted"))


def test_a_failed_attempt_shows_what_it_had_said_and_why_it_failed():
    log = Log().asking().chunk("first try").retry().chunk("second").says("second").end_step().end_turn()
    shown = lines(log)
    assert "assistant (of a failed attempt, not kept): first try" in shown
    assert "attempt 2 after 0.5 s: overloaded: busy" in shown
    assert shown.count("assistant: second") == 1
    log = Log().asking().chunk("only try").end_step()
    log.end_turn("error", reason={"kind": "error", "error": {"code": "truncated", "message": "no end"}})
    assert "assistant (of a failed attempt, not kept): only try" in lines(log)
    assert lines(log)[-1] == "ended error: truncated: no end"


def test_what_a_repair_wrote_is_marked():
    log = Log().put("later", "do it later").acting("c1", "c2").call("c1").output("c1", "some output").repair()
    shown = lines(log)
    assert [line for line in shown if line.endswith("[written by repair]")] == [
        "result of bash TOOL_OUTCOME_UNKNOWN: [written by repair]",
        "result of bash TOOL_NOT_STARTED: [written by repair]",
        "ended interrupted (10 input_tokens, 5 output_tokens) [written by repair]",
    ]
    assert shown[-1] == "waiting (next_turn): do it later"
    log = Log().asking().chunk("half an answ").repair()
    assert "assistant (cut): half an answ [written by repair]" in lines(log)
    log = Log().put("m").turn().taken("m").repair()
    assert "back in the inbox: hello [written by repair]" in lines(log)


@pytest.mark.parametrize("live, why", [(True, "it runs"), (False, "its process died")])
def test_what_is_open_is_said_with_why(live, why):
    log = Log().asking().says(*calls("c1")).call("c1").output("c1", "begun")
    shown = lines(log, live=live)
    assert "output so far of bash: begun" in shown
    assert any(line.startswith("turn 1 is open; " + why) for line in shown)
    shown = lines(Log().asking().chunk("so "), live=live)
    assert "assistant (so far): so" in shown


def test_messages_that_no_turn_took_are_told():
    log = Log().put("a", "first").steer("b", "second").put("c", "third").canceled("a").replaced("b")
    assert lines(log) == [
        "dropped unrun: first",
        "replaced: second",
        "waiting (next_turn): third",
    ]


def test_approvals_children_gaps_and_events_of_other_versions_are_told():
    log = Log().acting("c1").asked("c1").decided("c1", "rejected").result("c1", "DENIED", "no")
    log.child("started").child("ended", reason={"kind": "completed"}).child("ended", reason="aborted")
    log.unknown("weather/changed").end_step().end_turn()
    shown = lines(log)
    for line in (
        "approval asked for bash",
        "approval of bash: rejected",
        "result of bash DENIED: no",
        "child session child begins (background)",
        "child session child ends: completed",
        "child session child ends: aborted",
        "event of another version: weather/changed",
    ):
        assert line in shown
    assert "here 3 rows of the log are lost [written by repair]" in lines(Log().acting("c1").gap())


def test_long_texts_are_shortened_and_those_of_several_lines_stand_below():
    log = Log().asking().says("one\ntwo").end_step().end_turn()
    shown = rendered(log.events)
    assert "    assistant:\n      one\n      two\n" in shown
    log = Log().acting("c1").call("c1").result("c1", said="x" * 5000).end_step().end_turn()
    shown = rendered(log.events)
    assert len(shown) < 2500 and "more characters)" in shown


def test_blocks_of_other_kinds_are_named():
    picture = {"type": "image", "data": "…"}
    message = {"id": "m", "role": "user", "content": [picture], "source": "a \x1b hook"}
    log = Log().add("inbox/put", target="next_turn", wake=True, message=message).turn().taken("m").step()
    log._in_step("user/message", message=message).says("ok", picture)
    shown = lines(log)
    assert "user (by a \\x1b hook): [image]" in shown
    assert "a block of type image" in shown


def nasty_log():
    """Every text of a stranger tries to do something to the terminal."""
    call = {"type": "tool_call", "id": NASTY, "name": NASTY, "arguments": NASTY}
    log = Log().put("m", NASTY).turn().taken("m").step()
    log._in_step("user/message", message=words("m", NASTY, source=NASTY))
    log.header(NASTY, provider=NASTY, system=NASTY, tools=[{"name": NASTY}])
    log.chunk(NASTY).retry(error={"code": NASTY, "message": NASTY})
    log.says(reasoning(NASTY), NASTY, call, {"type": NASTY}, usage={NASTY: 3})
    log.asked(NASTY).decided(NASTY).call(NASTY, name=NASTY, arguments=NASTY).output(NASTY, NASTY)
    log.cancel(cause=NASTY, via=NASTY).unknown(NASTY)
    log.child("started", session=NASTY, mode=NASTY).child("ended", session=NASTY, reason=NASTY)
    return log


def test_nothing_of_a_stranger_reaches_the_terminal_raw():
    log = nasty_log()
    assert harmless(rendered(log.events))
    log.result(NASTY, NASTY, NASTY).end_step()
    log.end_turn("error", reason={"kind": "error", "error": {"code": NASTY, "message": NASTY}})
    log.put("x", NASTY).canceled("x").put("y", NASTY)
    shown = rendered(log.events)
    assert harmless(shown)
    assert "\\x1b[2J" in shown


@given(valid_logs())
@examples(60)
def test_every_log_can_be_shown_also_one_in_the_wrong_order(events):
    assert harmless(rendered(events))
    rendered(events[::-1])
    rendered(events[len(events) // 2 :], live=True)
