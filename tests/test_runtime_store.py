"""Sessions in a file: made, opened, looked at, and repaired when their process has died."""

import hashlib
import os
import re
import signal
import subprocess
import sys
import textwrap

import pytest
from runtime_parts import LONG, SOON, Background, Held, kinds, results, said

from syncagent.boundary.tools.base import tool
from syncagent.cancel import CancellationToken, Cancelled
from syncagent.errors import (
    SessionExists,
    SessionLive,
    SessionNotFound,
    SessionOpenTurn,
    StoreError,
    StoreFailed,
)
from syncagent.log import check, closers
from syncagent.log import events as ev
from syncagent.runtime.store import Store, new_session_id
from syncagent.testing import ScriptedModel, assert_log, call, hold

pytestmark = pytest.mark.concurrent


# -- making and opening --------------------------------------------------------------------------------


def test_a_store_touches_nothing_before_it_is_used(tmp_path):
    with Store(tmp_path / "folder" / "runs.db") as store:
        assert store.sessions() == []
        assert store.path == str(tmp_path / "folder" / "runs.db")
    assert not (tmp_path / "folder").exists()


def test_a_new_session_gets_a_readable_id_or_the_one_it_is_given(home):
    made = home.store.create(meta={"title": "x"})
    assert re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]{6}", made.id)
    assert home.store.create("mine").id == "mine"
    with pytest.raises(SessionExists):
        home.store.create("mine")
    infos = {info.id: info for info in home.store.sessions()}
    assert set(infos) == {"mine", made.id}
    assert infos[made.id].meta == {"title": "x"} and infos[made.id].live
    assert len({new_session_id() for _ in range(100)}) == 100


@pytest.mark.parametrize("id", ["../x", "/abs", "..", "", "*", "a\nb", "\x1b[2J", "a/b", "x" * 300, None, 5])
def test_an_id_that_could_be_a_path_or_a_control_sequence_is_refused(home, id):
    store = home.store
    for refuse in (store.open, store.load, store.inspect, lambda id: list(store.read(id))):
        with pytest.raises((ValueError, TypeError)) as caught:
            refuse(id)
        assert "\n" not in str(caught.value) and "\x1b" not in str(caught.value)
    assert os.listdir(os.path.dirname(home.path)) == []


def test_what_is_not_there_is_not_found(home):
    home.store.create("mine").close()
    for look in (home.store.open, home.store.load, home.store.inspect, lambda id: list(home.store.read(id))):
        with pytest.raises(SessionNotFound):
            look("other")


def test_a_second_open_is_refused_in_the_same_process_too_and_says_who_drives_it(home):
    with home.store.create("mine"):
        for opener in (home.store.open, home.store.open_or_create):
            with pytest.raises(SessionLive) as caught:
                opener("mine")
        assert caught.value.pid == os.getpid()
        with Store(home.path) as other:
            with pytest.raises(SessionLive):
                other.open("mine")
            with pytest.raises(SessionLive):
                other.load("mine")
    home.store.open("mine").close()


def test_of_two_that_open_or_make_a_session_at_once_one_wins_and_the_other_learns_who(home):
    for number in range(20):
        with Store(home.path) as other:
            both = [Background(store.open_or_create, f"s{number}") for store in (home.store, other)]
            won, lost = [], []
            for one in both:
                try:
                    won.append(one.result())
                except SessionLive as exc:
                    lost.append(exc.pid)
            assert (len(won), lost) == (1, [os.getpid()])
            won[0].close()


def test_closing_the_store_closes_its_sessions(home):
    session = home.store.create("mine")
    session.append(ev.CancelRequested(cause="user"))
    home.store.close()
    home.store.close()
    assert session.closed
    home.reopen()
    assert len(home.store.load("mine")) == 1


def test_a_session_that_cannot_be_read_is_not_left_live(home, monkeypatch):
    home.store.create("mine").close()

    def read(*args, **options):
        raise StoreFailed("gone", path=home.path)

    monkeypatch.setattr(home.store._backend, "read", read)
    with pytest.raises(StoreFailed):
        home.store.open("mine")
    monkeypatch.undo()
    home.store.open("mine").close()


# -- looking -------------------------------------------------------------------------------------------


def test_load_of_a_session_in_mid_turn_refuses_and_between_turns_gives_all(home):
    held = Held()
    agent = home.agent([call("work"), "done"], tools=[held.tool])
    future = agent.send("a")
    held.wait()
    last = agent.seq
    with pytest.raises(SessionOpenTurn):
        home.store.load(agent.session)
    with Store(home.path) as other, pytest.raises(SessionLive):
        other.load(agent.session)
    assert agent.seq == last
    held.point.release()
    future.result(LONG)
    agent.wait(LONG)
    assert home.store.load(agent.session) == home.events(agent)


def test_load_waits_until_what_is_in_memory_is_durable(home):
    agent = home.agent(["done"])
    ended = home.points.hold("turn.ended")
    future = agent.send("a")
    assert ended.reached.wait(LONG)
    agent._session.append(ev.CancelRequested(cause="user"))
    commit = home.points.hold("store.commit.before")
    agent._session.append(ev.CancelRequested(cause="user"))
    loading = Background(home.store.load, agent.session)
    assert commit.reached.wait(LONG)
    loading.thread.join(SOON)
    assert not loading.done
    commit.release()
    loaded = loading.result()
    assert loaded[-1].type == "cancel/requested"
    assert loaded == home.stored(agent)
    ended.release()
    assert future.result(LONG).text == "done"


def test_load_of_a_session_that_is_closed_meanwhile_reads_it_cold(home):
    session = home.store.create("mine")
    session.append(ev.CancelRequested(cause="user"))
    session.flush()
    flush = home.points.hold("store.flush")
    loading = Background(home.store.load, "mine")
    assert flush.reached.wait(LONG)
    session.close()
    flush.release()
    assert len(loading.result()) == 1
    home.store.open("mine").close()


def test_inspect_shows_a_live_session_as_it_stands_and_writes_nothing(home):
    agent = home.agent([["one", hold("p")]])
    future = agent.send("a")
    assert agent.model.point("p").reached.wait(LONG)
    agent._session.flush()
    last = agent.seq
    assert home.store.inspect(agent.session) == home.events(agent)
    examined = home.store.examine(agent.session)
    assert (examined.live, examined.closers) == (True, [])
    assert agent.seq == last
    agent.cancel()
    assert future.result(LONG).reason == "aborted"


def test_read_gives_stored_events_from_a_place_on(home):
    agent = home.agent(["one"])
    agent.run("a")
    whole = list(home.store.read(agent.session))
    assert list(home.store.read(agent.session, since=3)) == whole[3:]
    assert list(home.store.read(agent.session, 99)) == []


def test_the_list_of_sessions_says_how_each_one_ended(home):
    done, busy = home.agent(["one"], session="done"), home.agent([[hold("p"), "x"]], session="busy")
    home.agent(["never"], session="fresh")
    done.run("a")
    done.close()
    future = busy.send("a")
    assert busy.model.point("p").reached.wait(LONG)
    infos = {info.id: (info.live, info.turns, info.ending) for info in home.store.sessions()}
    assert infos == {"done": (False, 1, "completed"), "busy": (True, 1, "open"), "fresh": (True, 0, None)}
    busy.cancel()
    assert future.result(LONG).reason == "aborted"


# -- a process that died -------------------------------------------------------------------------------

CHILD = """
    import sys, threading
    from syncagent.boundary.tools.base import tool
    from syncagent.runtime.agent import Agent
    from syncagent.runtime.store import Store
    from syncagent.testing import FailPoints, ScriptedModel, call

    path, name, type, nth = sys.argv[1:5]
    points = FailPoints()
    store = Store(path, points=points)

    def body(name, effect="write"):
        def work() -> str:
            with open(path + ".done", "a") as file:
                file.write(name)
            return name + " is done"
        return tool(name=name, effect=effect)(work)

    model = ScriptedModel([
        "hello",
        ["Look.", call("a"), call("b"), call("c")],
        ["done"],
    ])
    agent = Agent(model, store=store, session="s", tools=[body("a"), body("b"), body("c")], max_parallel=1)
    agent.run("first")
    if name == "kill":
        if type == "flushed":
            points.kill("store.commit.after", nth=int(nth))
        else:
            points.kill("store.append", nth=int(nth), type=type)
    agent.run("second")
    agent.close()
    store.close()
    print("ended", flush=True)
"""


def run_child(path, *plan):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CHILD), str(path), *map(str, plan)],
        stdout=subprocess.PIPE,
        timeout=60,
        cwd=os.getcwd(),
    )
    return done.returncode, done.stdout


# Every place, and what a next request then holds, is tried by test_crash.py.
KILLS = [("assistant/chunk", 2), ("tool/call", 2), ("step/end", 1), ("flushed", 3)]


@pytest.mark.parametrize("kill", KILLS, ids=lambda kill: f"{kill[0]}-{kill[1]}")
def test_a_session_whose_process_was_killed_is_closed_by_the_next_open_and_goes_on(home, kill):
    code, printed = run_child(home.path, "kill", *kill)
    assert (code, printed) == (-signal.SIGKILL, b"")
    (info,) = home.store.sessions()
    assert not info.live and info.ending in ("completed", "unfinished")
    digest = _digest(home.path)
    shown = home.store.inspect("s")
    examined = home.store.examine("s")
    assert _digest(home.path) == digest
    before = list(home.store.read("s"))
    assert shown == examined.events == before + examined.closers
    assert examined.closers == closers(check(before))

    agent = home.agent(["understood", "again"], session="s", tools=[])
    assert home.events(agent) == shown
    report = agent.opened
    assert (report.events if report else []) == examined.closers
    assert (info.ending == "unfinished") == (report is not None)
    agent.wait(LONG)
    assert agent.seq == len(shown)  # what waits doesn't run by itself
    number = agent._session.state.turn
    last = agent.run("go on")
    assert last.turn == agent._session.state.turn > number
    assert kinds(home.events(agent))[number:] == ["completed"] * (last.turn - number)
    _check_calls(home, agent, report)


def _digest(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def _check_calls(home, agent, report):
    """The truth about each call: what it really did stands in a file beside the store."""
    ran = ""
    if os.path.exists(home.path + ".done"):
        with open(home.path + ".done") as file:
            ran = file.read()
    assert ran in ("", "a", "ab", "abc")
    if report is None or not (report.unknown or report.not_started):
        return
    names = {id: name for id, name in zip(["call_1", "call_2", "call_3"], "abc")}
    found = results(home.events(agent))
    for id, (code, text) in found.items():
        if code is None:
            assert text == f"{names[id]} is done" and names[id] in ran
        elif code == "TOOL_NOT_STARTED":
            assert "may be retried" in text and names[id] not in ran
        else:
            assert code == "TOOL_OUTCOME_UNKNOWN" and "Do not retry blindly" in text
    assert list(found) == ["call_1", "call_2", "call_3"]
    told = [line[0] for line in said(agent.model.requests[0])]
    assert told.count("call") == told.count("tool") == 3
    with open(home.path + ".done") if ran else open(os.devnull) as file:
        assert file.read() == ran  # nothing is run again


def test_a_killed_process_that_had_written_a_file_leaves_three_different_results(home):
    assert run_child(home.path, "kill", "tool/result", 2)[0] == -signal.SIGKILL
    session = home.store.open("s")
    codes = {id: code for id, (code, text) in results(session.events()).items()}
    assert codes == {"call_1": None, "call_2": "TOOL_OUTCOME_UNKNOWN", "call_3": "TOOL_NOT_STARTED"}
    assert (session.report.unknown, session.report.not_started) == (["call_2"], ["call_3"])
    assert (session.report.turn, session.report.text, session.report.parked) == (2, "", [])
    before = list(session.events())
    session.close()
    assert home.store.open("s").report is None  # a second open adds nothing
    assert list(home.store.read("s")) == before


def test_text_that_was_streamed_and_the_message_that_did_not_enter_come_back(home):
    assert run_child(home.path, "kill", "step/start", 1)[0] == -signal.SIGKILL
    with home.store.open("s") as session:
        assert session.report is None or [message.text for message in session.report.parked] == ["second"]
        assert [message.text for message in session.pending()["next_turn"]] == ["second"]


def test_a_child_that_is_not_killed_ends_well(home):
    assert run_child(home.path, "live", "-", 1) == (0, b"ended\n")
    assert kinds(home.store.load("s")) == ["completed", "completed"]


def test_a_live_session_is_never_repaired(home):
    held = Held()
    agent = home.agent([call("work"), "done"], tools=[held.tool], session="s")
    future = agent.send("a")
    held.wait()
    agent._session.flush()
    with Store(home.path) as other:
        before = list(other.read("s"))
        for refuse in (other.open, other.load):
            with pytest.raises(SessionLive):
                refuse("s")
        assert other.inspect("s") == before == list(other.read("s"))
    held.point.release()
    assert future.result(LONG).text == "done"
    assert results(home.events(agent)) == {"call_1": (None, "work is done")}


def test_what_the_loop_has_logged_can_be_closed_at_every_place(home):
    @tool
    def echo(text: str) -> str:
        """Echo."""
        return text

    script = [["Look.", call("echo", {"text": "1"}), call("fly")], "done", ["cut", hold("p")], "x"]
    agent = home.agent(ScriptedModel(script), tools=[echo])
    agent.run("a")
    agent.steer("b")
    assert agent.model.point("p").reached.wait(LONG)
    agent.send("c")
    agent.cancel()
    agent.wait(LONG)
    agent.run("d")
    events = home.stored(agent)
    for length in range(len(events) + 1):
        state = check(events[:length])
        added = closers(state)
        assert closers(check(events[:length])) == added
        assert closers(check(events[:length] + added)) == []
        assert_log(events[:length] + added)


def test_a_store_that_cannot_be_written_says_so_at_the_first_use(tmp_path):
    (tmp_path / "file").write_text("x")
    with Store(tmp_path / "file" / "runs.db") as store, pytest.raises((StoreError, OSError)):
        store.create("s")


@pytest.mark.parametrize("options", [{"durability": "none"}, {"journal": "off"}])
def test_a_store_that_would_lose_events_is_refused(tmp_path, options):
    with pytest.raises(ValueError):
        Store(tmp_path / "runs.db", **options)


def test_threads_that_load_a_cold_session_at_once_all_get_it_and_so_does_who_opens_it(home):
    home.store.create("s").close()
    held = home.points.hold("store.flush")
    loads = [Background(home.store.load, "s") for _ in range(3)]
    assert held.reached.wait(LONG)
    opening = Background(home.store.open, "s")
    with CancellationToken() as token:
        impatient = Background(home.store.open, "s", token=token)
        token.cancel()
        with pytest.raises(Cancelled):
            impatient.result()
    assert not opening.done
    held.release()
    with opening.result():
        assert [load.result() for load in loads] == [[], [], []]
        with pytest.raises(SessionLive):
            home.store.open("s")
