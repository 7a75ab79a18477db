"""Real runtimes that are really killed with -9: what was acknowledged stays, and the next open makes
a log of it that goes on; nothing runs twice, and nothing is left running."""

import functools
import itertools
import json
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time

import pytest
from naive import brief, naive_repair
from processes import ROOT, Mark, until
from runtime_parts import kinds, results, said
from victims import KILLED, Nursery, make_channels, make_tools

from syncagent import Agent, ChatModel, InvalidLog, SessionLive, Store, StoreTooNew
from syncagent.boundary.store.protocol import POINTS as STORE_POINTS
from syncagent.log import check, closers
from syncagent.log import events as ev
from syncagent.log.folds import pending_inbox
from syncagent.runtime.turn import POINTS as TURN_POINTS
from syncagent.surface.cli import main
from syncagent.testing import ModelServer, ScriptedModel, assert_log, call

pytestmark = pytest.mark.concurrent

#: How often the tests kill at random; more of it for a long run.
ROUNDS = int(os.environ.get("SYNCAGENT_CRASH_ROUNDS", "12"))


@pytest.fixture(scope="module")
def nursery():
    with Nursery() as made:
        yield made


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs.db"


def stored(path):
    """The events of the session on disk, read without writing."""
    with Store(path) as store:
        return list(store.read("s")) if store.sessions() else []


def reopened(path):
    """Open the session and let it go; return what is in it and the report of the repair."""
    with Store(path) as store:
        with store.open("s") as session:
            report = session.report
        return list(store.read("s")), report


def lines(path):
    """What the tools have written into the file of effects."""
    return path.read_text().splitlines() if path.exists() else []


def ask(path, server, message, **options):
    """A turn of a new agent on the session; the server refuses a transcript that doesn't pair up."""
    with Store(path) as store:
        with Agent(ChatModel("any", base_url=server.url), store=store, session="s", **options) as agent:
            return agent.run(message)


# -- killed everywhere ----------------------------------------------------------------------------------

#: A command with a tree that outlives it unless somebody ends it: it goes on once its word is logged.
TREE = (
    "echo bash >> {effects}; (sleep 600 & exec sleep 600) & setsid sleep 600 & echo begun; read line < {go}"
)


class Sweep:
    """One turn with two tool calls, to be killed at every hit of a point, each in a folder of its own."""

    def __init__(self, nursery, folder, server):
        self.nursery = nursery
        self.folder = folder
        self.server = server

    def run(self, name, kill=None):
        """Run the turn, to its end or its kill; return the victim, where it was, and its mark."""
        folder = self.folder / name
        folder.mkdir()
        os.mkfifo(folder / "go")
        mark = Mark()
        tree = TREE.format(effects=folder / "effects", go=folder / "go")
        victim = self.nursery.start(
            "work",
            path=folder / "runs.db",
            effects=folder / "effects",
            go=folder / "go",
            mark=mark.value,
            messages=["tidy up"],
            script=[
                ["Let me", " see.", ["bash", {"command": tree}], ["note", {"line": "note"}]],
                ["All", " done."],
            ],
            kill=kill,
        )
        victim.end()
        return victim, folder, mark

    def examine(self, victim, folder, mark, whole):
        """Whatever the moment of the kill: every promise holds. Return the events that were on disk."""
        path = folder / "runs.db"
        events = stored(path)
        assert [e.type for e in events] == whole[: len(events)]
        check_acknowledged(victim, events)
        check_effects(folder, events)
        expected = closers(check(events))
        after, report = reopened(path)
        assert after == events + expected
        # The same by rules that were written down a second time, without the code that repairs.
        added = brief([event.to_dict() for event in after[len(events) :]])
        assert added == naive_repair([event.to_dict() for event in events])
        assert (report is None) == (not expected)
        assert reopened(path) == (after, None)
        result = ask(path, self.server, "go on")
        assert (result.reason, result.text) == ("completed", "ok")
        assert_log(stored(path))
        check_effects(folder, events)
        until(lambda: not victim.left(mark), "every process of the victim is gone")
        return events


def check_acknowledged(victim, events):
    """What the victim was told to be durable is there."""
    durable = [seq for (seq,) in victim.heard("durable")]
    assert len(events) >= max(durable, default=0)
    puts = [event.body.message.text for event in events if event.type == "inbox/put"]
    assert set(puts) >= {message for (message,) in victim.heard("accepted")}
    ends = [event.body.turn for event in events if event.type == "turn/end"]
    assert set(ends) >= {turn for (turn,) in victim.heard("ended")}


def check_effects(folder, events):
    """Each call has had its effect once at most, and never before its start was on disk."""
    written = lines(folder / "effects")
    assert len(written) == len(set(written))
    assert set(written) <= {event.body.name for event in events if event.type == "tool/call"}


@pytest.fixture(scope="module")
def sweep(nursery, tmp_path_factory):
    with ModelServer(itertools.repeat("ok")) as server:
        made = Sweep(nursery, tmp_path_factory.mktemp("sweep"), server)
        victim, folder, mark = made.run("undisturbed")
        assert victim.status == 0, victim.said
        assert sorted(lines(folder / "effects")) == ["bash", "note"]
        made.whole = [event.type for event in stored(folder / "runs.db")]
        assert made.whole.count("tool/result") == 2 and made.whole[-1] == "turn/end"
        yield made


@pytest.mark.parametrize(
    "point",
    [
        point if point == "store.append" else pytest.param(point, marks=pytest.mark.once)
        for point in sorted({*STORE_POINTS, *TURN_POINTS} - {"store.repair.before_commit"})
    ],
)
def test_a_turn_killed_anywhere_goes_on_after_the_next_open(sweep, point):
    survived = threading.Event()
    numbers = itertools.count(1)
    failures, killed = [], []

    def work():
        try:
            while not survived.is_set():
                number = next(numbers)
                victim, folder, mark = sweep.run(f"{point}-{number}", kill=[point, number])
                assert victim.status in (KILLED, 0), victim.said
                events = sweep.examine(victim, folder, mark, sweep.whole)
                if victim.status == 0:
                    assert len(events) == len(sweep.whole)
                    survived.set()
                else:
                    killed.append(number)
        except BaseException as exc:
            failures.append((number, exc))
            survived.set()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise AssertionError(f"killed at hit {failures[0][0]} of {point}") from failures[0][1]
    assert len(killed) >= {"store.append": len(sweep.whole)}.get(point, 1)


# -- killed while it repairs ----------------------------------------------------------------------------

def leave_open(nursery, path, at="tool/result", **options):
    """Kill a victim in its turn, just before an event of this type would come into the log, when all
    that stands before it is on disk."""
    work = {
        "messages": ["go"],
        "script": [[["note", {"line": "a"}], ["note", {"line": "b"}]], ["done"]],
        "effects": path.parent / "effects",
        "stop": ["store.append", {"type": at}],
        **options,
    }
    with nursery.start("work", path=path, **work) as victim:
        (_, seq) = victim.wait_for("stopped")
        until(lambda: len(stored(path)) == seq, "the events are on disk")
        victim.kill()


@pytest.mark.parametrize(
    "at, expected",
    [
        ("step/start", ["inbox/put", "turn/end"]),
        ("assistant/message", ["step/end", "turn/end"]),
        ("tool/result", ["tool/result", "tool/result", "step/end", "turn/end"]),
    ],
)
def test_a_repair_that_is_killed_leaves_the_log_as_it_was(nursery, path, at, expected):
    leave_open(nursery, path, at)
    before = stored(path)
    for _ in range(3):
        kill = ["store.repair.before_commit", 1]
        with nursery.start("open", path=path, kill=kill) as victim:
            assert victim.end() == KILLED, victim.said
        assert stored(path) == before
    after, report = reopened(path)
    assert after == before + closers(check(before))
    assert [event.type for event in after[len(before) :]] == expected
    assert report.events == after[len(before) :]
    assert reopened(path) == (after, None)


# -- killed at random -----------------------------------------------------------------------------------


@pytest.mark.once
def test_nothing_acknowledged_is_lost_and_the_log_goes_on_whenever_it_is_killed(nursery, path):
    """Each runtime goes on where the one before was killed; then one event more is added, whole."""
    seed = random.randrange(1 << 30)
    rng = random.Random(seed)
    effects = path.parent / "effects"
    mark = Mark()
    for round in range(ROUNDS):
        place = f"seed {seed}, round {round}"
        with nursery.start("on", path=path, effects=effects, mark=mark.value) as victim:
            if round == 0:
                victim.wait_for("durable")
            for _ in range(rng.randrange(25)):
                victim.next()
            time.sleep(rng.uniform(0, 0.01))  # any moment, on purpose
            victim.kill()
        before = stored(path)
        check_acknowledged(victim, before)
        after, report = reopened(path)
        assert after == before + closers(check(before)), place
        with Store(path) as store:
            with store.open("s") as session:
                (added,) = session.append(
                    ev.CancelRequested(cause="user", via="api", keep_inbox=True, scope="tree")
                )
        assert stored(path) == [*after, added], place
        until(lambda: not victim.left(mark), "every process of the victim is gone")
        written = lines(effects)
        assert len(written) == len(set(written)), place
    assert_log(stored(path))
    with sqlite3.connect(path) as conn:
        assert conn.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    conn.close()
    started = " ".join(event.body.arguments for event in stored(path) if event.type == "tool/call")
    assert [line for line in lines(effects) if not re.search(rf"\b{line}[ \"]", started)] == []


# -- what the user and the model get to know ------------------------------------------------------------


def busy(nursery, path, *before, **options):
    """A victim in a turn whose second tool asks, and which has a third call after that."""
    script = [[["note", {"line": "a"}], ["ask", {"question": "b"}], ["note", {"line": "c"}]], ["done"]]
    victim = nursery.start(
        "work",
        path=path,
        effects=path.parent / "effects",
        script=[*([word] for word in before), *script],
        messages=[*before, "three things"],
        **options,
    )
    victim.wait_for("asked")
    return victim


def test_a_killed_turn_is_unfinished_until_it_is_opened_and_interrupted_after_that(nursery, path):
    with busy(nursery, path) as victim, Store(path) as store:
        (info,) = store.sessions()
        assert (info.live, info.pid, info.ending) == (True, victim.pid, "open")
        victim.kill()
        (info,) = store.sessions()
        assert (info.live, info.pid, info.ending) == (False, None, "unfinished")
        store.open("s").close()
        (info,) = store.sessions()
        assert (info.live, info.ending, info.turns) == (False, "interrupted", 1)


def test_after_a_kill_each_call_says_what_is_known_of_it(nursery, path):
    """The first has its real result, the second may have had an effect, the third never began."""
    with busy(nursery, path, "hello") as victim:
        victim.kill()
    before = stored(path)
    with ModelServer(itertools.repeat("ok")) as server:
        assert ask(path, server, "continue").reason == "completed"
        (request,) = server.requests
    after = stored(path)
    assert after[: len(before)] == before
    found = results(after)
    ids = [block["id"] for block in calls_of(after)]
    assert [found[id][0] for id in ids] == [None, "TOOL_OUTCOME_UNKNOWN", "TOOL_NOT_STARTED"]
    told = [message["content"] for message in request.body["messages"] if message["role"] == "tool"]
    assert told == [found[id][1] for id in ids]
    assert told[0] == "wrote a"
    assert ["Do not retry blindly" in text for text in told] == [False, True, False]
    assert kinds(after) == ["completed", "interrupted", "completed"]
    assert lines(path.parent / "effects") == ["a"]


def calls_of(events):
    """The calls that the log's messages ask for, in order."""
    messages = [event.body.message for event in events if event.type == "assistant/message"]
    return [block for message in messages for block in message.content if block["type"] == "tool_call"]


@pytest.mark.parametrize(
    "at, code, written",
    [("tool/call", "TOOL_NOT_STARTED", []), ("tool/result", "TOOL_OUTCOME_UNKNOWN", ["a"])],
)
def test_a_resumed_session_runs_no_call_again_and_tells_the_model_what_is_known(
    nursery, path, at, code, written
):
    """The record of the start is on disk before the effect, so without it there was none."""
    leave_open(nursery, path, at, script=[[["note", {"line": "a"}]], ["done"]])
    effects = path.parent / "effects"
    assert lines(effects) == written
    with ModelServer(itertools.repeat("ok")) as server:
        assert ask(path, server, "continue").text == "ok"
        (request,) = server.requests
    assert lines(effects) == written
    ((found, text),) = results(stored(path)).values()
    assert found == code
    assert [m["content"] for m in request.body["messages"] if m["role"] == "tool"] == [text]
    assert ("outcome" in text and "unknown" in text) == (code == "TOOL_OUTCOME_UNKNOWN")
    assert ("never started" in text) == (code == "TOOL_NOT_STARTED")


def test_text_that_was_streamed_before_the_kill_stays(nursery, path):
    """Nothing flushes it: it is on disk a moment after it came."""
    messages = ["tell me"]
    with nursery.start("work", path=path, messages=messages, script=[["Hel", "lo", None]]) as victim:
        until_logged(path, lambda event: event.type == "assistant/chunk" and event.body.chunk["text"] == "lo")
        victim.kill()
    events, report = reopened(path)
    assert report.text == "Hello"
    (message,) = [event.body for event in events if event.type == "assistant/message"]
    assert (message.message.text, message.interrupted) == ("Hello", True)
    with ModelServer(["ok"]) as server:
        ask(path, server, "go on")
        assert {"role": "assistant", "content": "Hello"} in server.requests[0].body["messages"]


def until_logged(path, wanted):
    with Store(path) as store:
        until(lambda: store.sessions() and any(map(wanted, store.read("s"))), "the event is on disk")


def test_a_killed_runtime_takes_its_tools_with_it(nursery, path):
    mark = Mark()
    tree = "trap '' TERM HUP; setsid sleep 600 & (sleep 600 &) & echo begun; sleep 600"
    script = [[["bash", {"command": tree}]]]
    victim = nursery.start("work", path=path, messages=["go"], script=script, mark=mark.value)
    with victim:
        until_logged(path, lambda event: event.type == "tool/chunk")
        until(lambda: len(victim.left(mark)) >= 4, "all of the tree runs")
        victim.kill()
    until(lambda: not victim.left(mark), "its tools and their supervisor are gone")
    events, report = reopened(path)
    ((code, text),) = results(events).values()
    assert code == "TOOL_OUTCOME_UNKNOWN" and "begun" in text
    assert report.unknown == [calls_of(events)[0]["id"]]


# -- live and cold --------------------------------------------------------------------------------------


def files(path):
    """The bytes of the database and of its log."""
    log = path.with_name(path.name + "-wal")
    return [path.read_bytes(), log.read_bytes() if log.exists() else b""]


@pytest.mark.parametrize(
    "args, code",
    [
        (["show", "s"], 0),
        (["export", "s"], 0),
        (["sessions"], 0),
        (["verify", "s"], 1),
        (["repair", "s"], 75),
        (["run", "more", "-s", "s", "-m", "any", "--base-url", "http://127.0.0.1:9/v1"], 75),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_no_command_touches_a_session_that_is_live_elsewhere(nursery, path, capsys, args, code):
    with busy(nursery, path) as victim:
        before = stored(path)
        assert main([*args, "--db", str(path)]) == code
        shown = capsys.readouterr()
        if args[0] == "export":
            assert [json.loads(line) for line in shown.out.splitlines()] == [e.to_dict() for e in before]
        if code == 75:
            assert shown.out == "" and f"process {victim.pid}" in shown.err
        assert stored(path) == before
        victim.tell("the real answer")
        victim.finish()
    after = assert_log(stored(path))
    assert after[: len(before)] == before and kinds(after) == ["completed"]


def test_a_session_that_is_live_elsewhere_is_looked_at_and_never_repaired(nursery, path):
    """Its turn is open and one of its calls runs; whoever looks adds nothing."""
    with busy(nursery, path) as victim, Store(path) as store:
        before = stored(path)
        assert check(before).phase == "acting"
        content = files(path)
        found = store.examine("s")
        assert (found.live, found.closers, found.events) == (True, [], before)
        assert store.inspect("s") == list(store.read("s")) == before
        resume = functools.partial(Agent, ScriptedModel([]), store=store)
        for refused in (lambda: store.open("s"), lambda: store.load("s"), lambda: resume(session="s")):
            with pytest.raises(SessionLive, match=str(victim.pid)) as caught:
                refused()
            assert caught.value.pid == victim.pid
            (info,) = store.sessions()
            assert (caught.value.host, caught.value.since) == (info.host, info.since)
        assert stored(path) == before
        assert files(path)[0] == content[0]
        victim.tell("the real answer")
        victim.finish()
    after = assert_log(stored(path))
    assert after[: len(before)] == before
    assert [text for code, text in results(after).values()] == ["wrote a", "the real answer", "wrote c"]
    assert kinds(after) == ["completed"]


def test_a_session_that_becomes_live_after_a_look_is_not_repaired(nursery, path):
    """It was cold when it was looked at; when it is to be opened, another has a turn open in it."""
    leave_open(nursery, path)
    with Store(path) as store:
        assert not store.examine("s").live
        with busy(nursery, path) as victim:
            before = stored(path)
            with pytest.raises(SessionLive):
                store.open("s")
            assert stored(path) == before
            victim.tell("done")
            victim.finish()
    assert kinds(assert_log(stored(path))) == ["interrupted", "completed"]


@pytest.mark.parametrize("ending", ["it goes on", "it is killed"])
def test_who_opens_while_another_repairs_waits_for_how_that_ends(nursery, path, ending):
    leave_open(nursery, path)
    before = stored(path)
    expected = closers(check(before))
    with nursery.start("open", path=path, stop=["store.repair.before_commit"]) as first:
        first.wait_for("stopped")
        with Store(path) as store:
            found = store.examine("s")
            assert (found.live, found.closers) == (False, expected)
        with nursery.start("open", path=path) as second:
            second.wait_for("opening")
            if ending == "it is killed":
                first.kill()
                assert second.wait_for("opened") == [len(expected)]
            else:
                first.tell("go on")
                assert first.wait_for("opened") == [len(expected)]
                assert second.wait_for("live")[0] == first.pid
                second.finish()
                first.tell("let it go")
                first.finish()
    assert stored(path) == before + expected


def test_looking_at_a_cold_session_writes_nothing(nursery, path):
    leave_open(nursery, path)
    before = stored(path)
    query = "SELECT rev, epoch, data_version FROM sessions, pragma_data_version"
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as conn:
        version = conn.execute(query).fetchone()
        content = files(path)
        assert all(content)
        with Store(path) as store:
            found = store.examine("s")
            assert found.closers == closers(check(before)) != []
            assert store.inspect("s") == found.events == before + found.closers
            assert_log(found.events)
            assert [info.ending for info in store.sessions()] == ["unfinished"]
        assert files(path) == content
        assert conn.execute(query).fetchone() == version
    conn.close()
    assert stored(path) == before


def test_of_two_that_open_a_cold_session_at_once_one_wins_and_the_other_learns_who(nursery, path):
    leave_open(nursery, path)
    with nursery.start("race", path=path) as one, nursery.start("race", path=path) as other:
        racers = [one, other]
        for racer in racers:
            racer.wait_for("ready")
        for round in range(20):
            closing = closers(check(stored(path)))
            for racer in racers:
                racer.tell("go")
            answers = [racer.next() for racer in racers]
            winner = [answer[0] for answer in answers].index("won")
            assert answers[winner] == ["won", len(closing)]
            assert answers[1 - winner] == ["live", racers[winner].pid]
            for racer in racers:
                racer.tell("leave")
                racer.wait_for("left")
    events, _ = reopened(path)
    assert kinds(assert_log(events)) == ["interrupted"] * 21


def test_numbers_go_on_and_what_waited_runs_at_the_next_wake(nursery, path):
    victim = nursery.start(
        "work", path=path, messages=["a", "b", "c"], script=[[["ask", {"question": "?"}]]]
    )
    with victim:
        until_logged(path, lambda event: event.type == "inbox/put" and event.body.message.text == "c")
        victim.wait_for("asked")
        victim.kill()
    with Store(path) as store, Agent(ScriptedModel([]), store=store, session="s") as agent:
        assert agent.opened.turn == 1
        assert agent.wait() is None
        assert agent.status == "idle"
        assert agent.seq == len(stored(path))
    events = stored(path)
    waiting = pending_inbox(events)
    assert [message.text for message in waiting["next_turn"]] == ["b", "c"]
    with Store(path) as store:
        model = ScriptedModel(["one", "two", "three"])
        with Agent(model, store=store, session="s") as agent:
            result = agent.run("d")
        assert (result.turn, result.text) == (4, "three")
    after = assert_log(stored(path))
    assert after[: len(events)] == events
    assert [lines[-1] for lines in map(said, model.requests)] == [("user", word) for word in "bcd"]
    assert kinds(after) == ["interrupted", "completed", "completed", "completed"]


# -- logs of other builds -------------------------------------------------------------------------------


def plant(path, data):
    """An event at the end of the log that no build of today writes."""
    with sqlite3.connect(path) as conn:
        (seq,) = conn.execute("SELECT next_seq FROM sessions").fetchone()
        (sid, stamp) = conn.execute("SELECT sid, time FROM events ORDER BY seq DESC LIMIT 1").fetchone()
        row = (sid, seq, 1, "plan/made", stamp, None, data)
        conn.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        conn.execute("UPDATE sessions SET next_seq = ?", (seq + 1,))
    conn.close()


def test_a_log_with_an_unknown_event_is_refused_with_what_to_do(nursery, path):
    leave_open(nursery, path)
    plant(path, '{"goal":"x"}')
    before = stored(path)
    with Store(path) as store:
        for refused in (store.open, store.load, store.inspect):
            with pytest.raises(InvalidLog, match="plan/made.*upgrade syncagent") as caught:
                refused("s")
            assert caught.value.seq == before[-1].seq
    assert stored(path) == before


def test_an_unknown_event_that_says_so_is_read_past(nursery, path):
    leave_open(nursery, path)
    plant(path, '{"goal":"x","ignorable":true}')
    before = stored(path)
    after, report = reopened(path)
    assert after == before + closers(check(before))
    assert len(report.unknown) == 1
    with ModelServer(["ok"]) as server:
        assert ask(path, server, "go on").text == "ok"


def test_a_store_of_a_newer_build_is_refused_with_what_to_do(nursery, path):
    leave_open(nursery, path)
    with sqlite3.connect(path) as conn:
        conn.execute("UPDATE store SET v = '9' WHERE k = 'min_reader'")
        conn.execute("PRAGMA user_version = 9")
    conn.close()
    content = files(path)
    with Store(path) as store:
        for refused in (store.open, store.load, store.inspect):
            with pytest.raises(StoreTooNew, match="upgrade syncagent"):
                refused("s")
    assert files(path) == content


# -- stopped in order -----------------------------------------------------------------------------------


def test_after_a_stop_the_request_is_the_one_that_another_process_would_build(nursery, path):
    """The next turn is sent while the stopped one still runs, and sees all that this one did."""
    ours, theirs = make_channels()
    calls = [call("note", {"line": "a"}), call("ask", {"question": "b"})]
    server = ModelServer(itertools.chain([calls], itertools.repeat("ok")))
    copy = path.with_name("copy.db")
    with ours.socket, theirs.socket, server, Store(path) as store:
        tools = make_tools(theirs, effects=path.parent / "effects")
        model = ChatModel("any", base_url=server.url)
        with Agent(model, store=store, session="s", tools=tools, max_parallel=1) as agent:
            first = agent.send("two things")
            assert ours.hear()[0] == "asked"
            assert agent.cancel()
            second = agent.send("and now?")
            ours.say("late")
            assert first.result().reason == "aborted"
            assert second.result().reason == "completed"
            source, target = sqlite3.connect(path), sqlite3.connect(copy)
            source.backup(target)
            source.close(), target.close()
            assert agent.run("once more").text == "ok"
        with nursery.start("ask", path=copy, url=server.url, message="once more") as other:
            assert other.wait_for("ended") == ["completed"]
            other.finish()
        bodies = [request.body for request in server.requests]
    told = [message["content"] for message in bodies[1]["messages"] if message["role"] == "tool"]
    assert told == ["wrote a", "late"]
    assert bodies[2] == bodies[3]
    assert bodies[2]["messages"][: len(bodies[1]["messages"])] == bodies[1]["messages"]


SCRIPT = """
    import sys
    from syncagent import Agent, Store
    from syncagent.boundary.tools.bash import bash_tool
    from syncagent.testing import ScriptedModel, call

    bash = bash_tool(env={"PATH": "/bin:/usr/bin", "TOOL_MARK": sys.argv[2]})
    model = ScriptedModel([["Wait.", call("bash", {"command": "sleep 600 & echo begun; sleep 600"})]])
    with Store(sys.argv[1]) as store:
        with Agent(model, store=store, session="s", tools=[bash]) as agent:
            agent.run("go")
    print("it went on")
"""


@pytest.mark.parametrize(
    "number, via, code",
    [
        (signal.SIGTERM, "sigterm", 143),
        (signal.SIGHUP, "sighup", 129),
        (signal.SIGINT, "sigint", -signal.SIGINT),
    ],
)
def test_a_signal_to_a_script_in_a_tool_stops_the_turn_in_order(path, number, via, code):
    """The ending is written before the process leaves, and nothing of the tool goes on."""
    mark = Mark()
    program = [sys.executable, "-c", textwrap.dedent(SCRIPT), path, mark.value]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": {**os.environ, "PYTHONPATH": ROOT}}
    with subprocess.Popen(program, text=True, **pipes) as script:
        try:
            until_logged(path, lambda event: event.type == "tool/chunk")
            script.send_signal(number)
            out, err = script.communicate(timeout=30)
        finally:
            script.kill()
    assert (script.returncode, out) == (code, ""), err
    assert ("KeyboardInterrupt" in err) == (number == signal.SIGINT), err
    assert mark.pids() == []
    events = assert_log(stored(path))
    assert events[-1].type == "turn/end" and kinds(events) == ["aborted"]
    ((code, text),) = results(events).values()
    assert code == "ABORTED" and "begun" in text
    assert [event.body.via for event in events if event.type == "cancel/requested"] == [via]
