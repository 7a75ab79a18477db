"""The list of sessions, for people and for programs."""

import os

import pytest
from commands import Command, clean_environment, harmless
from log_writer import Log

from syncagent import Agent, Store
from syncagent.testing import ScriptedModel, stall


@pytest.fixture
def command(monkeypatch, tmp_path, capsys):
    clean_environment(monkeypatch, tmp_path)
    return Command(capsys, tmp_path / "runs.db")


def test_each_session_has_a_line_with_its_ending(command):
    command.make("first", "hi")
    command.write("second", Log().asking())
    command.write("third", Log())
    done = command("sessions")
    assert done.code == 0
    assert done.lines[0].split() == ["ID", "ENDING", "TURNS", "UPDATED", "LIVE"]
    rows = {line.split()[0]: line.split()[1:3] for line in done.lines[1:]}
    assert rows == {"third": ["-", "0"], "second": ["unfinished", "1"], "first": ["completed", "1"]}


def test_json_gives_an_object_for_each_session(command):
    command.make("first", "hi")
    done = command("sessions", "--json")
    (found,) = done.objects
    assert found["id"] == "first"
    assert found["live"] is False and found["pid"] is None
    assert (found["turns"], found["ending"]) == (1, "completed")
    assert isinstance(found["updated"], int) and found["updated"] >= found["created"]


@pytest.mark.concurrent
def test_a_live_session_shows_the_process_that_runs_it(command):
    with Store(command.db) as store:
        with Agent(ScriptedModel([["so far", stall()]]), store=store, session="s1") as agent:
            agent.send("hello")
            for event in agent.follow():
                if event.type == "assistant/chunk":
                    break
            done, found = command("sessions"), command("sessions", "--json").objects[0]
            agent.cancel()
    assert done.lines[1].split()[:2] == ["s1", "open"]
    assert f"process {os.getpid()} on " in done.out
    assert (found["live"], found["pid"], found["ending"]) == (True, os.getpid(), "open")
    assert command("sessions").lines[1].split()[1] == "aborted"


def test_a_database_that_is_not_there_has_no_sessions_and_is_not_made(command, tmp_path):
    done = command("sessions")
    assert (done.code, done.out) == (0, "")
    assert done.err == f"there is no database {command.db}: --db names one that is there\n"
    assert command("sessions", "--json").out == ""
    assert os.listdir(tmp_path) == []


def test_a_database_without_sessions_says_so(command):
    with Store(command.db) as store:
        with store.create("s1"):
            pass
    command.damage("DELETE FROM sessions")
    assert command("sessions").err == f"there are no sessions in {command.db}\n"


def test_a_host_with_a_bad_name_can_do_nothing(command):
    command.make("s1", "hi")
    with Store(command.db) as store:
        with store.open("s1"):
            command.damage("UPDATE runners SET host = ?", "\x1b[2Jhost")
            done = command("sessions")
    assert harmless(done.out)


@pytest.mark.parametrize("content", [b"no database at all, but long enough to be one" * 30, b"x"])
def test_a_file_of_somebody_else_is_refused_in_one_line(command, content):
    with open(command.db, "wb") as file:
        file.write(content)
    done = command("sessions")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"Error: {command.db} is no database")
    assert done.err.count("\n") == 1
