"""Whether a log keeps the rules: of a session, of a file, of standard input."""

import io
import json

import pytest
from commands import NASTY, Command, clean_environment, harmless
from log_writer import Log
from rule_logs import BROKEN

from syncagent import Agent, Store
from syncagent.testing import ScriptedModel, stall


@pytest.fixture
def command(monkeypatch, tmp_path, capsys):
    clean_environment(monkeypatch, tmp_path)
    return Command(capsys, tmp_path / "runs.db")


@pytest.fixture
def written(tmp_path):
    def write(log, name="log.jsonl"):
        path = tmp_path / name
        path.write_text("".join(json.dumps(item) + "\n" for item in log.dicts), encoding="utf-8")
        return str(path)

    return write


def test_a_balanced_session_is_0(command):
    command.make("s1", "hi")
    done = command("verify", "s1")
    assert (done.code, done.err) == (0, "")
    assert done.out == f"balanced: {len(command.events('s1'))} events, 1 turn\n"


def test_an_open_turn_is_1_and_nothing_is_repaired(command):
    command.write("s1", Log().asking().chunk("half"))
    before = command.contents()
    done = command("verify", "s1")
    assert (done.code, done.out) == (1, "turn 1 is open after event 6 (asking)\n")
    assert command.contents() == before


@pytest.mark.concurrent
def test_a_live_session_is_verified_as_it_stands(command):
    with Store(command.db) as store:
        with Agent(ScriptedModel([["so far", stall()]]), store=store, session="s1") as agent:
            agent.send("hello")
            for event in agent.follow():
                if event.type == "assistant/chunk":
                    break
            agent._session.flush()
            assert command("verify", "s1").code == 1
            agent.cancel()
            agent.wait()
            assert command("verify", "s1").code == 0


def test_a_broken_rule_is_3_with_seq_rule_and_text(command):
    command.make("s1", "hi")
    command.damage("UPDATE events SET data = '{\"turn\":7}' WHERE type = 'turn/start'")
    done = command("verify", "s1")
    assert (done.code, done.err) == (3, "")
    assert done.out == "2 L3 turn/start: it is turn 7, not 1\n"


def test_a_lost_row_is_a_broken_l1(command):
    command.make("s1", "hi")
    command.damage("DELETE FROM events WHERE type = 'step/start'")
    done = command("verify", "s1")
    assert done.code == 3 and done.out.startswith("4 L1 ")


@pytest.mark.parametrize("log", [Log(), Log().whole(), Log().put("m", NASTY)])
def test_a_file_of_a_balanced_log_is_0(command, written, log):
    assert command("verify", written(log)).code == 0


def test_a_file_of_an_open_turn_is_1(command, written):
    assert command("verify", written(Log().asking())).code == 1


def writable_logs():
    """The broken logs that JSON text can hold at all."""
    for rule, logs in BROKEN.items():
        for name, log in logs.items():
            try:
                text = [json.dumps(item) for item in log.dicts]
            except (TypeError, RecursionError):
                continue
            if [json.dumps(json.loads(line)) for line in text] == text and "a tuple" not in name:
                if name != "a key that is no string":
                    yield pytest.param(rule, log, id=f"{rule}: {name}")


@pytest.mark.parametrize("rule, log", list(writable_logs()))
def test_a_file_that_breaks_a_rule_is_3(command, written, rule, log):
    done = command("verify", written(log))
    assert (done.code, done.err) == (3, "")
    seq, found, _ = done.out.split(" ", 2)
    assert found == rule
    assert int(seq) == log.dicts[-1]["seq"]
    assert done.out.count("\n") == 1 and harmless(done.out)


def test_standard_input_is_a_file_too(command, monkeypatch):
    text = "".join(json.dumps(item) + "\n" for item in Log().whole().dicts)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert command("verify", "-").out == "balanced: 9 events, 1 turn\n"


def test_nothing_of_a_file_reaches_the_terminal_raw(command, written):
    log = Log().unknown(NASTY)
    del log.dicts[0]["data"]["ignorable"]
    done = command("verify", written(log))
    assert done.code == 3 and harmless(done.out)


def test_what_can_not_be_found_is_wrong_use(command):
    done = command("verify", "nobody")
    assert done.code == 2 and "there is no session 'nobody'" in done.err
