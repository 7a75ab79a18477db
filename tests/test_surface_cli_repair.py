"""Closing what a dead process left open, or showing what would close it."""

import json
import os
import pathlib

import pytest
from commands import Command, clean_environment
from log_writer import Log

from syncagent import Store
from syncagent.log import check, closers


@pytest.fixture
def command(monkeypatch, tmp_path, capsys):
    clean_environment(monkeypatch, tmp_path)
    return Command(capsys, tmp_path / "runs.db")


def died():
    return Log().acting("c1", "c2").call("c1")


def written(tmp_path, log):
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(item) + "\n" for item in log.dicts))
    return path


def test_a_session_is_repaired_and_what_was_done_is_said(command):
    command.write("s1", died())
    done = command("repair", "s1")
    assert (done.code, done.err) == (0, "")
    assert done.out == (
        "session s1: turn 1 had died with its process and was closed:"
        " 1 call of unknown outcome, 1 call not started; 4 events added\n"
    )
    assert command("verify", "s1").code == 0
    assert "interrupted" in command("sessions").out
    assert command("repair", "s1").out == "session s1 is balanced: there is nothing to repair\n"


def test_a_dry_run_prints_the_closers_and_writes_nothing(command):
    command.write("s1", died())
    before = command.contents()
    done = command("repair", "s1", "--dry-run")
    assert (done.code, done.err) == (0, "")
    assert [found["type"] for found in done.objects] == ["tool/result", "tool/result", "step/end", "turn/end"]
    assert command.contents() == before
    command("repair", "s1")
    assert [event.to_dict() for event in command.events("s1")[-4:]] == done.objects
    assert command("repair", "s1", "--dry-run").out == ""


@pytest.mark.parametrize("extra", [[], ["--dry-run"]])
def test_the_closers_of_a_file_are_printed_and_nothing_is_written(command, tmp_path, extra):
    path = written(tmp_path, died())
    before = path.read_bytes()
    done = command("repair", str(path), *extra)
    assert (done.code, done.err) == (0, "")
    assert done.objects == [event.to_dict() for event in closers(check(died().events))]
    assert path.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["log.jsonl"]


def test_a_balanced_file_needs_no_closers_and_is_0(command, tmp_path):
    for log in (Log(), Log().whole()):
        done = command("repair", str(written(tmp_path, log)))
        assert (done.code, done.out, done.err) == (0, "", "")


def test_a_file_that_breaks_a_rule_is_3_with_seq_rule_and_text_on_standard_error(command, tmp_path):
    log = died().end_step()
    done = command("repair", str(written(tmp_path, log)))
    assert (done.code, done.out) == (3, "")
    assert done.err == f"{len(log.dicts)} L7 step/end: calls are open: 'c1', 'c2'\n"


@pytest.mark.parametrize("extra", [[], ["--dry-run"]])
def test_a_session_that_breaks_a_rule_is_3_and_left_as_it_is(command, extra):
    command.write("s1", died())
    command.damage("UPDATE events SET data = '{\"turn\":1,\"step\":9}' WHERE type = 'step/start'")
    before = command.events("s1")
    done = command("repair", "s1", *extra)
    assert (done.code, done.out) == (3, "")
    assert done.err == "4 L4 step/start: it is step 9, not 1\n"
    assert command.events("s1") == before


@pytest.mark.parametrize("extra", [[], ["--dry-run"]])
def test_a_live_session_is_75_with_its_process(command, extra):
    with Store(command.db) as store:
        with store.create("s1"):
            done = command("repair", "s1", *extra)
    assert (done.code, done.out) == (75, "")
    assert done.err.startswith(f"Error: session 's1' is live: process {os.getpid()} on ")


def test_an_unknown_session_is_wrong_use(command):
    done = command("repair", "nobody")
    assert done.code == 2 and "there is no session 'nobody'" in done.err
    assert "there is no such file" in done.err
    assert not pathlib.Path(command.db).exists()
    command.make("s1", "hi")
    assert f"`syncagent sessions --db {command.db}` lists those" in command("repair", "nobody").err
