"""A session for people and for programs, read without writing."""

import os
import stat

import pytest
from commands import NASTY, Command, clean_environment, harmless
from log_writer import Log

from syncagent import Agent, Store
from syncagent.testing import ScriptedModel, stall


@pytest.fixture
def command(monkeypatch, tmp_path, capsys):
    clean_environment(monkeypatch, tmp_path)
    return Command(capsys, tmp_path / "runs.db")


def test_it_shows_turns_and_how_the_session_stands(command):
    command.make("s1", "an answer", prompt="a question")
    done = command("show", "s1")
    assert done.code == 0
    assert done.lines[0] == "session s1: 1 turn, the last one completed; cold"
    for text in ("user: a question", "assistant: an answer", "ended completed"):
        assert text in done.out


def test_json_gives_the_events_as_they_stand(command):
    command.write("s1", Log().asking().chunk("half"))
    done = command("show", "s1", "--json")
    assert done.objects == [event.to_dict() for event in command.events("s1")]
    assert done.objects[-1]["type"] == "assistant/chunk"


def test_it_writes_nothing_and_leaves_an_open_turn_open(command):
    command.write("s1", Log().acting("c1").call("c1"))
    before = command.contents()
    done = command("show", "s1")
    assert done.code == 0
    assert "turn 1 is open; its process died" in done.out
    assert command.contents() == before
    assert "unfinished" in command("sessions").out


def test_a_file_that_can_only_be_read_is_enough(command, tmp_path):
    command.make("s1", "hi")
    for path in (command.db, str(tmp_path)):
        os.chmod(path, os.stat(path).st_mode & ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH))
    try:
        assert command("show", "s1").code == 0
        assert command("show", "s1", "--json").code == 0
        assert command("sessions").code == 0
        assert command("verify", "s1").code == 0
    finally:
        os.chmod(tmp_path, 0o700)


@pytest.mark.concurrent
def test_a_live_session_is_shown_as_it_stands(command):
    with Store(command.db) as store:
        with Agent(ScriptedModel([["so far", stall()]]), store=store, session="s1") as agent:
            agent.send("hello")
            for event in agent.follow():
                if event.type == "assistant/chunk":
                    break
            agent._session.flush()
            done = command("show", "s1")
            agent.cancel()
    assert f"live, process {os.getpid()} on " in done.lines[0]
    assert "assistant (so far): so far" in done.out
    assert "turn 1 is open; it runs" in done.out


def test_nothing_of_a_stranger_reaches_the_terminal_raw(command):
    command.make("s1", NASTY, prompt=NASTY, system=NASTY)
    done = command("show", "s1")
    assert harmless(done.out) and "\\x1b[2J" in done.out
    done = command("show", "s1", "--json")
    assert harmless(done.out)
    assert done.objects[0]["data"]["message"]["content"][0]["text"] == NASTY, "the log keeps the original"


def test_a_log_that_breaks_a_rule_is_shown_all_the_same(command):
    command.make("s1", "hi")
    command.damage("UPDATE events SET data = '{\"turn\":7}' WHERE type = 'turn/start'")
    done = command("show", "s1")
    assert done.code == 0 and "turn 7" in done.out


@pytest.mark.parametrize(
    "session, said",
    [("nobody", "there is no session 'nobody'"), ("../x", "can't name a session"), ("\x1b[2J", "can't name")],
)
def test_a_session_that_is_not_there_is_wrong_use(command, session, said):
    command.make("s1", "hi")
    done = command("show", session)
    assert (done.code, done.out) == (2, "")
    assert said in done.err and done.err.startswith("Error: ") and done.err.count("\n") == 1
    assert harmless(done.err)
