"""`syncagent run`: the answer, the objects, what is wrong use, and how signals end it."""

import fcntl
import io
import json
import os
import signal
import subprocess
import sys
import termios
import threading

import pytest
from commands import DEADLINE, NASTY, Command, Started, clean_environment, harmless
from log_writer import Log
from owners import put_out_of_reach
from processes import Mark, until

from syncagent import LeaseLost, Store
from syncagent.runtime import request
from syncagent.surface.cli import main
from syncagent.testing import ModelServer, assert_log, call, finish, hold, stall, status, text, usage

pytestmark = pytest.mark.concurrent

TOOLS = '''
import sys, threading
from syncagent import tool

@tool(effect="read")
def look(path: str) -> str:
    """Look at it."""
    return "seen " + path

@tool(effect="read")
def stubborn() -> str:
    """Never listens to anybody."""
    print("it runs", file=sys.stderr, flush=True)
    threading.Event().wait()
'''


@pytest.fixture
def command(monkeypatch, tmp_path, capsys):
    clean_environment(monkeypatch, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SYNCAGENT_MODEL", "m")
    (tmp_path / "cli_tools.py").write_text(TOOLS)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield Command(capsys, tmp_path / "runs.db")
    sys.modules.pop("cli_tools", None)


@pytest.fixture
def serve(monkeypatch):
    """Start a model server with a script; the command finds it in the environment."""
    servers = []

    def start(*script):
        server = ModelServer(list(script))
        servers.append(server)
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        return server

    yield start
    for server in servers:
        server.close()


def kinds(command, session):
    return [event.type for event in command.events(session)]


def ending(command, session="s1"):
    """How the session's last turn ended; the log keeps the rules and is balanced."""
    with command.store() as store:
        events = assert_log(store, session)
    return events[-1].data["reason"]["kind"]


# -- answers --------------------------------------------------------------------------------------


def test_the_answer_goes_to_standard_output_and_the_session_to_standard_error(command, serve):
    server = serve([text("Hel", "lo"), usage(3, 2)])
    done = command("run", "Say hello", "-s", "s1", "--system", "Be brief.")
    assert (done.code, done.out) == (0, "Hello\n")
    assert done.err == f"session s1; continue with: syncagent run -s s1 --db {command.db} PROMPT\n"
    body = server.request().body
    assert body["model"] == "m" and "tools" not in body
    assert [(m["role"], m["content"]) for m in body["messages"]] == [
        ("system", "Be brief."),
        ("user", "Say hello"),
    ]
    assert "authorization" not in server.request().headers
    assert ending(command) == "completed"


def test_a_session_goes_on_and_a_new_one_has_an_id_of_its_own(command, serve):
    server = serve("one", "two", "three")
    command("run", "first", "-s", "s1")
    command("run", "second", "-s", "s1")
    assert [m["content"] for m in server.request(1).body["messages"]] == ["first", "one", "second"]
    done = command("run", "third")
    assert [m["content"] for m in server.request(2).body["messages"]] == ["third"]
    made = done.err.split()[1].rstrip(";")
    assert {line.split()[0] for line in command("sessions").lines[1:]} == {"s1", made}


def test_the_prompt_comes_from_standard_input_with_a_dash(command, serve, monkeypatch):
    server = serve("ok")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("größe\nzwei\n".encode())))
    assert command("run", "-").code == 0
    assert server.request().body["messages"][0]["content"] == "größe\nzwei"


def test_json_is_one_object(command, serve):
    serve([text("Hel", "lo"), usage(3, 2)])
    done = command("run", "hi", "--json", "-s", "s1")
    assert done.code == 0
    assert done.objects == [
        {
            "session": "s1",
            "turn": 1,
            "reason": "completed",
            "text": "Hello",
            "partial_text": None,
            "error": None,
            "cause": None,
            "usage": {"input_tokens": 3, "output_tokens": 2},
            "dropped": [],
            "opened": None,
        }
    ]


def test_json_lines_are_the_turns_events_and_last_the_object(command, serve):
    serve("one", [text("t", "wo")])
    command("run", "hi", "-s", "s1")
    first = len(command.events("s1"))
    done = command("run", "more", "--json-lines", "-s", "s1")
    *events, result = done.objects
    assert events == [event.to_dict() for event in command.events("s1")[first:]]
    assert (events[0]["type"], events[-1]["type"]) == ("inbox/put", "turn/end")
    assert (result["reason"], result["text"], result["turn"]) == ("completed", "two", 2)


def test_tools_are_called_and_told_about(command, serve):
    server = serve(
        [call("bash", {"command": "echo from-bash"}), call("look", {"path": "x"})], "All done."
    )
    done = command("run", "go", "-s", "s1", "--tool", "bash", "--tool", "cli_tools:look", "--yes")
    assert (done.code, done.out) == (0, "All done.\n")
    assert 'bash {"command": "echo from-bash"}' in done.err.splitlines()
    assert "look done, 6 characters" in done.err.splitlines()
    assert [tool["function"]["name"] for tool in server.request().body["tools"]] == ["bash", "look"]
    results = [m["content"] for m in server.request(1).body["messages"] if m["role"] == "tool"]
    assert results == ["from-bash\n", "seen x"]


def test_files_of_the_current_folder_are_at_hand_and_the_database_is_not(command, serve, tmp_path):
    calls = [
        call("write_file", {"path": "new/a.txt", "content": "written\n"}),
        call("read_file", {"path": "runs.db"}),
    ]
    server = serve(calls, "Done.")
    assert command("run", "go", "--tool", "files", "--yes").code == 0
    assert (tmp_path / "new" / "a.txt").read_text() == "written\n"
    results = [m["content"] for m in server.request(1).body["messages"] if m["role"] == "tool"]
    assert results[0] == "wrote 8 bytes to new/a.txt (new file)"
    assert "runs.db: it belongs to the store of this session" in results[1]


def test_a_tool_that_only_reads_needs_no_consent(command, serve):
    serve([call("look", {"path": "x"})], "ok")
    assert command("run", "go", "--tool", "cli_tools:look").code == 0


def test_retries_are_told(command, serve):
    serve(status(429, headers={"Retry-After": "0"}), "after all")
    done = command("run", "go")
    assert (done.code, done.out) == (0, "after all\n")
    assert "retry 1 of 5 in 0.0 s: rate_limit: HTTP 429" in done.err


def test_a_session_whose_process_died_is_repaired_and_that_is_told(command, serve):
    serve("ok", "ok")
    command.write("s1", Log().acting("c1").call("c1"))
    done = command("run", "go on", "-s", "s1", "--json")
    assert done.code == 0
    assert "turn 1 had died with its process and was closed: 1 call of unknown outcome" in done.err
    assert done.objects[0]["opened"] == {
        "turn": 1,
        "unknown": ["c1"],
        "not_started": [],
        "text": "",
        "parked": [],
    }
    assert command("run", "again", "-s", "s1", "--json").objects[0]["opened"] is None


def test_a_message_that_a_dead_process_left_is_taken_up_first(command, serve):
    serve("old answer", "new answer")
    command.write("s1", Log().put("old", "an old wish"))
    done = command("run", "a new wish", "-s", "s1")
    assert (done.code, done.out) == (0, "old answer\nnew answer\n")
    assert "turn 1 takes up a message that has waited: an old wish" in done.err


# -- other endings --------------------------------------------------------------------------------


def test_a_refusal_is_1_and_says_why(command, serve):
    serve(status(401, "no such key"))
    done = command("run", "hi", "-s", "s1")
    assert (done.code, done.out) == (1, "")
    assert "Error: turn 1 failed: HTTP 401 Unauthorized: no such key [authentication]" in done.err
    assert ending(command) == "error"


def test_a_cut_answer_is_1(command, serve):
    serve([text("too lo"), finish("max_tokens")])
    done = command("run", "hi", "-s", "s1")
    assert (done.code, done.out) == (1, "too lo\n")
    assert "reached the output limit" in done.err
    assert ending(command) == "max_tokens"


def test_a_time_out_is_124(command, serve):
    serve([text("so far"), stall()])
    done = command("run", "hi", "-s", "s1", "--timeout", "0.5", "--json")
    assert done.code == 124
    found = done.objects[0]
    assert (found["reason"], found["cause"], found["text"]) == ("aborted", "timeout", None)
    assert found["partial_text"] == "so far"
    assert "turn 1 was stopped (cause: timeout)" in done.err
    assert ending(command) == "aborted"


def test_a_server_that_is_not_there_is_1(command, monkeypatch):
    monkeypatch.setattr(request, "FIRST_DELAY", 0.01)  # the waits between the attempts, else 15 s
    done = command("run", "hi", "-s", "s1", "--base-url", "http://127.0.0.1:9/v1")
    assert done.code == 1 and "Traceback" not in done.err
    assert "retry 5 of 5" in done.err and "refused" in done.err


def test_a_live_session_is_75_and_nothing_is_sent(command, serve):
    server = serve("never")
    with Store(command.db) as store:
        with store.create("s1"):
            done = command("run", "hi", "-s", "s1")
    assert (done.code, done.out) == (75, "")
    assert f"process {os.getpid()}" in done.err and done.err.count("\n") == 1
    assert server.requests == []


def test_steal_takes_the_session_and_its_owner_can_write_no_more(command, serve):
    serve("mine now")
    with Store(command.db) as store:
        session = store.create("s1")
        for steal in ([], ["--steal"]):
            done = command("run", "hi", "-s", "s1", *steal)
            assert done.code == 75 and "wait until it ends" in done.err, "it is known to live"
        put_out_of_reach(command.db)
        for refused in (["run", "hi", "-s", "s1"], ["repair", "s1"], ["repair", "s1", "--dry-run"]):
            done = command(*refused)
            assert done.code == 75 and "can't be asked" in done.err and "steal" in done.err
        assert command("run", "hi", "-s", "s1", "--steal").out == "mine now\n"
        with pytest.raises(LeaseLost):
            session.append(*[event.body for event in Log().put("late").events])
            session.flush()


def test_a_log_that_breaks_a_rule_is_3_and_left_as_it_is(command, serve):
    serve("never")
    command.write("s1", Log().acting("c1"))
    command.damage("UPDATE events SET data = '{\"turn\":1,\"step\":9}' WHERE type = 'step/start'")
    before = kinds(command, "s1")
    done = command("run", "hi", "-s", "s1")
    assert done.code == 3 and "breaks L4" in done.err
    assert kinds(command, "s1") == before


@pytest.mark.parametrize(
    "args, said",
    [
        (["  "], "the prompt is empty"),
        (["hi", "-m", ""], "no model is named"),
        (["hi", "-m", "anthropic:x"], "can't be used yet"),
        (["hi", "--base-url", "nowhere"], "must be an http or https address"),
        (["hi", "--tool", "bash"], "--yes"),
        (["hi", "--tool", "files"], "--tool files: write_file may change things"),
        (["hi", "-s", "../x"], "can't name a session"),
        (["hi", "--timeout", "0"], "give seconds above 0"),
        (["hi", "--timeout", "nan"], "give seconds above 0"),
        (["hi", "--timeout", "inf"], "give seconds above 0"),
        (["hi", "--timeout", "soon"], "not a valid float"),
    ],
)
def test_wrong_use_is_2_before_anything_is_made(command, serve, args, said):
    server = serve("never")
    done = command("run", *args)
    assert (done.code, done.out) == (2, "")
    assert said in done.err and "Error: " in done.err
    assert not os.path.exists(command.db) and server.requests == []


@pytest.mark.parametrize(
    "content, said", [(b"", "standard input is empty"), (b"\n \n", "empty"), (b"ab\xff", "see byte 3")]
)
def test_standard_input_that_holds_no_prompt_is_wrong_use(command, serve, monkeypatch, content, said):
    serve("never")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
    done = command("run", "-")
    assert done.code == 2 and said in done.err


def test_settings_come_from_flags_before_the_environment(command, serve, monkeypatch, tmp_path, capsys):
    elsewhere = serve("never")
    server = serve("ok")
    monkeypatch.setenv("OPENAI_BASE_URL", elsewhere.url)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-the-key-itself")
    monkeypatch.setenv("SYNCAGENT_DB", str(tmp_path / "other.db"))
    assert command("run", "hi", "-m", "openai:flag", "--base-url", server.url, "-s", "s1").code == 0
    assert server.request().body["model"] == "flag"
    assert server.request().headers["authorization"] == "Bearer sk-the-key-itself"
    assert elsewhere.requests == [] and not (tmp_path / "other.db").exists()
    monkeypatch.setenv("SYNCAGENT_DB", command.db)
    assert main(["sessions"]) == 0
    assert "s1" in capsys.readouterr().out


def test_the_key_is_nowhere_to_be_found(command, serve, monkeypatch):
    key = "sk-unique-4711-key"
    monkeypatch.setenv("OPENAI_API_KEY", key)
    serve(status(401, f"wrong key {key}"))
    done = command("run", "hi", "-s", "s1")
    assert done.code == 1 and key not in done.out + done.err
    assert not any(key.encode() in content for content in command.contents().values())


def test_nothing_of_a_stranger_reaches_the_terminal_raw(command, serve):
    serve([text(NASTY, NASTY), call("look", {"path": NASTY}), call(NASTY, NASTY)], status(400, NASTY))
    done = command("run", NASTY, "-s", "s1", "--tool", "cli_tools:look", "--system", NASTY)
    assert done.code == 1
    assert harmless(done.out) and harmless(done.err)
    assert "\\x1b[2J" in done.out and "\\x1b[2J" in done.err
    asked = command.events("s1")[0].data["message"]["content"][0]["text"]
    assert asked == NASTY, "the log keeps the original"
    serve([text(NASTY)])
    assert harmless(command("run", "hi", "-s", "s1", "--json-lines").out)


# -- as a process ---------------------------------------------------------------------------------


def test_the_answer_is_there_before_it_is_complete(command, serve):
    server = serve([text("Hel"), hold("middle"), text("lo")])
    with Started("run", "hi", db=command.db) as started:
        started.wait_for("Hel")
        assert started.out == "Hel"
        server.point("middle").release()
        assert started.end() == 0
        assert started.out == "Hello\n"


SIGNALS = [(signal.SIGINT, 130, "sigint"), (signal.SIGTERM, 143, "sigterm"), (signal.SIGHUP, 129, "sighup")]


@pytest.mark.parametrize("number, code, via", SIGNALS)
def test_a_signal_while_it_streams_stops_the_turn_in_order(command, serve, number, code, via):
    """Partial text is never the answer."""
    server = serve([text("a", "b", "c"), stall()])
    mark = Mark()
    with Started("run", "hi", "-s", "s1", "--json-lines", db=command.db, env=mark.env) as started:
        started.wait_for('"text": "c"')
        started.signal(number)
        assert started.end() == code
        result = json.loads(started.out.splitlines()[-1])
    assert (result["reason"], result["text"], result["partial_text"]) == ("aborted", None, "abc")
    assert (result["cause"], result["session"]) == ("user", "s1")
    assert ending(command) == "aborted"
    data = {event.type: event.data for event in command.events("s1")}
    assert data["cancel/requested"]["via"] == via
    assert data["assistant/message"]["interrupted"] is True
    assert "Traceback" not in started.err and "turn 1 was stopped" in started.err
    assert server.request().gone.wait(DEADLINE)
    assert mark.pids() == []


@pytest.mark.parametrize("number, code, via", SIGNALS)
def test_a_signal_while_a_tool_runs_ends_its_processes_first(command, serve, number, code, via):
    serve([call("bash", {"command": "sleep 60 & echo begun; wait"})], "never")
    mark = Mark()
    args = ["run", "hi", "-s", "s1", "--tool", "bash", "--yes", "--json-lines"]
    with Started(*args, db=command.db, env=mark.env) as started:
        started.wait_for("begun\\n")
        until(lambda: len(mark.pids()) > 2, "the command, the shell and its child run")
        started.signal(number)
        assert started.end() == code
        assert mark.pids() == []
    assert ending(command) == "aborted"
    (result,) = [event.data for event in command.events("s1") if event.type == "tool/result"]
    assert result["error"]["code"] == "ABORTED"


def test_three_times_ctrl_c_leaves_a_tool_that_never_listens(command, serve):
    """The log is then as after a crash: the next open repairs it."""
    serve([call("stubborn", {})], "never")
    mark = Mark()
    args = ["run", "hi", "-s", "s1", "--tool", "cli_tools:stubborn"]
    with Started(*args, db=command.db, env=mark.env) as started:
        started.wait_for("it runs", stream="err")
        started.signal(signal.SIGINT)
        started.wait_for("stopping", stream="err")
        started.signal(signal.SIGINT)
        started.wait_for("killing", stream="err")
        started.signal(signal.SIGINT)
        assert started.end() == 130
        assert mark.pids() == []
    assert "unfinished" in command("sessions").out
    assert "1 call of unknown outcome" in command("repair", "s1").out
    assert ending(command) == "interrupted"


def test_a_burst_of_ctrl_c_ends_it_once(command, serve):
    serve([text("a"), stall()])
    with Started("run", "hi", "-s", "s1", db=command.db) as started:
        started.wait_for("a")
        for _ in range(5):
            started.signal(signal.SIGINT)
        assert started.end() == 130
        assert "Traceback" not in started.err
    command("repair", "s1")
    assert kinds(command, "s1").count("turn/end") == 1


def test_a_reader_that_leaves_stops_the_turn(command, serve):
    server = serve([text("one"), hold("middle"), text("two"), stall()])
    environ = {**os.environ, "SYNCAGENT_DB": command.db}
    line = [sys.executable, "-m", "syncagent", "run", "hi", "-s", "s1"]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ)
    with process:
        assert process.stdout.read(3) == b"one"
        process.stdout.close()
        server.point("middle").release()
        err = process.stderr.read()
        assert process.wait(DEADLINE) == 1
    assert b"Traceback" not in err
    assert ending(command) == "aborted"


def test_a_reader_that_sleeps_keeps_nobody_from_stopping(command, serve, tmp_path):
    serve([*[text("x" * 1000)] * 200, stall()])
    environ = {**os.environ, "SYNCAGENT_DB": command.db}
    line = [sys.executable, "-m", "syncagent", "run", "hi", "-s", "s1"]
    with open(tmp_path / "err", "wb") as err:
        process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=err, env=environ)
    with process:
        pipe = process.stdout.fileno()

        def is_full():
            return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4), sys.byteorder) >= 60_000

        until(is_full, "the pipe is full")
        process.send_signal(signal.SIGINT)
        until(lambda: " aborted " in command("sessions").out, "the turn is stopped")
        until(lambda: process.poll() is not None or process.send_signal(signal.SIGINT), "it has left")
        # The last of them may meet a command that has done all and given its handler back.
        assert process.returncode in (130, -signal.SIGINT)
    assert ending(command) == "aborted"


def test_it_works_off_the_main_thread_too(command, serve):
    serve("ok")
    codes = []
    thread = threading.Thread(target=lambda: codes.append(main(["run", "hi", "--db", command.db])))
    thread.start()
    thread.join()
    assert codes == [0]
