"""What may stop an agent's thread, and what a stop leaves alone."""

import threading
import time
from concurrent.futures import CancelledError

import pytest
from owners import put_out_of_reach
from runtime_parts import LONG, SOON, Background, Held, kinds, results, said, types, until

from syncagent.boundary.tools.base import tool
from syncagent.cancel import CancellationToken, Cause
from syncagent.errors import AgentClosed, LeaseLost, StoreFailed
from syncagent.log import events as ev
from syncagent.runtime.hooks import Continue
from syncagent.runtime.store import Store
from syncagent.testing import call, hold, status

pytestmark = pytest.mark.concurrent


def busy(home, *more, **options):
    """An agent in its first turn, whose tool is stopped; and that tool."""
    held = Held(**options)
    agent = home.agent([call("work"), *more], tools=[held.tool])
    return agent, held


def test_the_interpreters_end_waits_for_a_turn_that_a_daemon_thread_asked_for_too(home):
    agent, held = busy(home, "done")
    sender = threading.Thread(target=agent.send, args=("a",), daemon=True)
    sender.start()
    held.wait()
    sender.join()
    assert agent._driver._thread.daemon is False
    held.point.release()
    assert agent.wait(LONG).text == "done"


# -- a stop that has nothing to stop -------------------------------------------------------------------


def test_a_stop_of_an_idle_agent_is_nothing_and_arms_nothing(home):
    agent = home.agent(["one", "two"])
    assert agent.cancel() is False
    assert agent.cancel(keep_inbox=True) is False
    assert home.events(agent) == []
    assert agent.run("a").text == "one"
    before = home.events(agent)
    assert agent.cancel() is False
    assert home.events(agent) == before
    assert agent.run("b").text == "two"
    assert len(agent.model.requests) == 2


def test_a_stop_after_the_hand_over_changes_nothing(home):
    agent = home.agent(["done"])
    point = home.points.hold("turn.handed_over")
    future = agent.send("a")
    assert point.reached.wait(LONG)
    assert agent.cancel() is False
    point.release()
    assert future.result(LONG).reason == "completed"
    assert "cancel/requested" not in types(home.events(agent))


def test_a_stop_while_the_ending_is_being_flushed_changes_nothing(home):
    agent = home.agent(["done"])
    ended = home.points.hold("turn.ended")
    future = agent.send("a")
    assert ended.reached.wait(LONG)
    flush = home.points.hold("store.flush")
    ended.release()
    assert flush.reached.wait(LONG)
    assert agent.cancel() is False
    assert not future.done()
    flush.release()
    assert future.result(LONG).reason == "completed"
    assert "cancel/requested" not in types(home.events(agent))


def test_messages_dropped_after_the_hand_over_are_not_the_turns(home):
    agent = home.agent(["done"])
    point = home.points.hold("turn.handed_over")
    first = agent.send("a")
    assert point.reached.wait(LONG)
    second = agent.send("b")
    assert agent.cancel() is True  # for the message that waits
    point.release()
    assert first.result(LONG).reason == "completed"
    assert first.result().dropped == []
    assert second.cancelled()
    assert [message.text for message in agent.dropped()] == ["b"]


# -- tokens --------------------------------------------------------------------------------------------


def test_every_turn_has_a_fresh_token_and_an_old_one_reaches_no_other_turn(home):
    tokens = []

    def pre_step(view, *, token):
        tokens.append(token)

    agent = home.agent(["one", ["t", hold("p"), "wo"], "three"], pre_step=pre_step)
    agent.run("a")
    second, third = agent.send("b"), agent.send("c")
    assert agent.model.point("p").reached.wait(LONG)
    assert tokens[0] is not tokens[1]
    assert tokens[0].cancel() is False
    agent.model.point("p").release()
    assert second.result(LONG).text == "two"
    assert third.result(LONG).text == "three"
    assert len({id(token) for token in tokens}) == 3


@pytest.mark.parametrize("rounds", [30, pytest.param(500, marks=pytest.mark.once)])
def test_a_stop_and_a_send_at_once_never_hit_the_wrong_turn(home, rounds):
    def script():
        for number in range(rounds):
            yield [f"slow {number}", hold(f"p{number}")]
            yield "echo"

    agent = home.agent(script())
    for number in range(rounds):
        slow = agent.send("slow")
        assert agent.model.point(f"p{number}").reached.wait(LONG)
        assert agent.cancel() is True
        echo = agent.send("echo")
        assert (slow.result(LONG).reason, echo.result(LONG).text) == ("aborted", "echo")
    assert kinds(home.events(agent)) == ["aborted", "completed"] * rounds


def test_a_cancelled_token_stays_cancelled_for_every_holder(home):
    kept = []

    @tool
    def work(token: CancellationToken) -> str:
        """Keep the token."""
        kept.append(token)
        token.wait(LONG)
        token.raise_if_cancelled()
        return "never"

    agent = home.agent([call("work")], tools=[work])
    future = agent.send("go")
    until(lambda: kept, "the body")
    agent.cancel()
    assert future.result(LONG).reason == "aborted"
    agent.wait(LONG)
    assert kept[0].cancelled and kept[0].cause == "user"


def test_the_first_cause_wins_and_a_second_stop_may_still_empty_the_inbox(home):
    agent, held = busy(home, stubborn=True)
    first = agent.send("a")
    held.wait()
    assert agent.cancel("hook", keep_inbox=True) is True
    queued = agent.send("b")
    assert agent.cancel("timeout") is True
    assert queued.cancelled()
    assert agent.cancel("timeout") is False
    held.point.release()
    result = first.result(LONG)
    assert (result.reason, result.cause) == ("aborted", Cause.HOOK)
    assert [message.text for message in result.dropped] == ["b"]
    agent.wait(LONG)
    assert kinds(home.events(agent)) == ["aborted"]


def test_two_sessions_share_no_stop(home):
    a, in_a = busy(home)
    b, in_b = busy(home, "ok")
    first, second = a.send("go"), b.send("go")
    in_a.wait()
    in_b.wait()
    a.cancel()
    assert first.result(LONG).reason == "aborted"
    assert in_b.tokens[0].cancelled is False
    in_b.point.release()
    assert second.result(LONG).text == "ok"


# -- a stop before anything has happened ---------------------------------------------------------------


def test_a_stop_while_the_message_is_on_its_way_drops_it(home):
    agent = home.agent(["never"])
    point = home.points.hold("store.flush")
    run = Background(agent.run, "a")
    assert point.reached.wait(LONG)
    assert agent.cancel() is True
    point.release()
    result = run.result()
    assert (result.turn, result.reason, result.cause) == (None, "aborted", Cause.USER)
    agent.wait(LONG)
    assert [event.type for event in home.events(agent)] == ["inbox/put", "cancel/requested", "inbox/taken"]
    assert agent.model.requests == []


def test_a_stop_before_the_first_check_leaves_a_turn_without_a_step(home):
    agent = home.agent(["never"])
    point = home.points.hold("turn.begun")
    future = agent.send("a")
    assert point.reached.wait(LONG)
    assert agent.cancel() is True
    point.release()
    assert future.result(LONG).reason == "aborted"
    assert types(home.events(agent)) == ["turn/start", "cancel/requested", "cancel/settled", "turn/end"]
    assert agent.model.requests == []
    assert [message.text for message in agent.dropped()] == ["a"]


def test_a_stop_right_at_the_start_of_a_step_closes_it_and_asks_nothing(home):
    agent = home.agent(["never"])
    point = home.points.hold("step.started")
    future = agent.send("a")
    assert point.reached.wait(LONG)
    agent.cancel()
    point.release()
    assert future.result(LONG).reason == "aborted"
    assert types(home.events(agent)) == [
        "turn/start", "step/start", "user/message", "cancel/requested", "cancel/settled",
        "step/end", "turn/end",
    ]  # fmt: skip
    assert agent.model.requests == []


# -- between a stop and the end of its turn ------------------------------------------------------------


def test_a_message_between_a_stop_and_quiet_is_a_turn_of_its_own(home):
    agent, held = busy(home, "fresh", stubborn=True)
    first = agent.send("a")
    held.wait()
    agent.cancel()
    second = agent.send("b")
    assert not first.done()
    held.point.release()
    assert first.result(LONG).reason == "aborted"
    assert (second.result(LONG).turn, second.result().text) == (2, "fresh")
    starts = [event.seq for event in home.events(agent, "turn/start")]
    ends = [event.seq for event in home.events(agent, "turn/end")]
    assert starts[0] < ends[0] < starts[1] < ends[1]


def test_a_message_that_is_dropped_between_a_stop_and_quiet_starts_no_empty_turn(home):
    agent, held = busy(home, stubborn=True)
    first = agent.send("a")
    held.wait()
    agent.cancel()
    second = agent.send("b")
    agent.cancel()
    held.point.release()
    assert first.result(LONG).reason == "aborted"
    assert second.cancelled()
    agent.wait(LONG)
    assert len(home.events(agent, "turn/start")) == 1


def test_steering_between_a_stop_and_quiet_goes_to_the_next_turn(home):
    agent, held = busy(home, "fresh", stubborn=True)
    first = agent.send("a")
    held.wait()
    agent.cancel()
    second = agent.steer("b")
    held.point.release()
    assert first.result(LONG).turn == 1
    assert (second.result(LONG).turn, second.result().text) == (2, "fresh")


def test_steering_after_a_stop_between_two_steps_is_not_claimed_by_the_stopped_turn(home):
    agent = home.agent([call("nothing"), "fresh"])
    point = home.points.hold("step.ended")
    first = agent.send("a")
    assert point.reached.wait(LONG)
    agent.cancel()
    second = agent.steer("b")
    point.release()
    assert first.result(LONG).reason == "aborted"
    assert (second.result(LONG).turn, second.result().text) == (2, "fresh")


def test_what_a_hook_asks_for_as_the_turn_is_stopped_starts_nothing(home):
    agent = home.agent(["done"], turn_stopping=lambda view, *, token: Continue("more"))
    checked = []

    def put_next(text):
        agent.cancel()
        checked.append(text)
        return original(text)

    original, agent._driver.put_next = agent._driver.put_next, put_next
    assert agent.run("a").reason == "aborted"
    agent.wait(LONG)
    assert checked == ["more"]
    assert len(home.events(agent, "inbox/put")) == 1


def test_a_wait_from_before_the_stop_ends_with_the_stopped_turn(home):
    agent, held = busy(home, ["fresh", hold("p")], stubborn=True)
    agent.send("a")
    held.wait()
    early = Background(agent.wait)
    until(lambda: len(agent._driver.guard._condition._waiters) == 1, "the wait")
    agent.cancel()
    agent.send("b")
    late = Background(agent.wait)
    until(lambda: len(agent._driver.guard._condition._waiters) == 2, "the other wait")
    held.point.release()
    assert agent.model.point("p").reached.wait(LONG)
    assert early.result().turn == 1
    assert not late.done
    agent.model.point("p").release()
    assert late.result().turn == 2


def test_a_wait_from_before_the_stop_returns_when_nothing_follows(home):
    agent, held = busy(home)
    agent.send("a")
    held.wait()
    wait = Background(agent.wait)
    agent.cancel()
    assert wait.result().reason == "aborted"
    assert agent.status == "idle"


# -- the inbox at a stop -------------------------------------------------------------------------------


def test_a_stop_empties_next_step_before_next_turn_and_steering_is_no_turn(home):
    agent, held = busy(home)
    first = agent.send("a")
    held.wait()
    futures = [agent.send("t1"), agent.steer("s1"), agent.send("t2"), agent.inject("s2")]
    agent.cancel()
    result = first.result(LONG)
    assert [message.text for message in result.dropped] == ["s1", "s2", "t1", "t2"]
    assert [message.text for message in agent.dropped()] == ["s1", "s2", "t1", "t2"]
    assert all(future.cancelled() for future in futures)
    agent.wait(LONG)
    assert len(home.events(agent, "turn/start")) == 1
    kept = [event for event in home.events(agent) if event.type in ("cancel/requested", "inbox/taken")]
    stop, taken = kept[-2:]
    assert stop.data == {"cause": "user", "via": "api", "keep_inbox": False, "scope": "tree"}
    assert (taken.body.outcome, len(taken.body.ids)) == ("canceled", 4)
    texts = {event.body.message.id: event.body.message.text for event in home.events(agent, "inbox/put")}
    assert [texts[id] for id in taken.body.ids] == ["s1", "s2", "t1", "t2"]


def test_a_kept_inbox_is_parked_in_order_and_runs_at_the_next_wake(home):
    agent, held = busy(home, "r0", "r1", "r2", "r3")
    first = agent.send("a")
    held.wait()
    parked = [agent.send("q1"), agent.send("q2"), agent.steer("s")]
    assert agent.cancel(keep_inbox=True) is True
    result = first.result(LONG)
    agent.wait(LONG)
    assert (result.reason, result.dropped) == ("aborted", [])
    assert len(home.events(agent, "turn/start")) == 1  # nothing goes on by itself
    assert not any(future.done() for future in parked)
    last = agent.send("q3")
    assert last.result(LONG).text == "r2"
    assert [future.result(LONG).turn for future in parked] == [2, 3, 2]
    entered = [event.body.message.text for event in home.events(agent, "user/message")]
    assert entered == ["a", "s", "q1", "q2", "q3"]
    assert agent.dropped() == []  # what the stopped turn had claimed is not put back


def test_a_stop_that_keeps_the_inbox_parks_what_came_after_an_earlier_stop(home):
    agent, held = busy(home, "fresh", stubborn=True)
    agent.send("a")
    held.wait()
    agent.cancel()
    late = agent.send("b")
    assert agent.cancel(keep_inbox=True) is True
    assert agent.cancel(keep_inbox=True) is False
    held.point.release()
    agent.wait(LONG)
    assert kinds(home.events(agent)) == ["aborted"]
    assert not late.done()


def test_a_turn_that_a_hook_stops_goes_on_to_no_queued_work_either(home):
    def request(view, *, token):
        if view.turn == 1:
            queued.append(agent.send("b"))
            token.cancel("hook", "enough")

    queued = []
    agent = home.agent(["two", "three"], request=request)
    result = agent.run("a")
    agent.wait(LONG)
    assert (result.reason, result.cause) == ("aborted", Cause.HOOK)
    assert kinds(home.events(agent)) == ["aborted"]
    assert not queued[0].done()
    assert agent.run("c").turn == 3
    assert queued[0].result(LONG).turn == 2


# -- a stop takes no boundary --------------------------------------------------------------------------


def test_a_stop_returns_while_the_writer_is_held(home):
    agent = home.agent(["never"])
    started = home.points.hold("step.started")
    future = agent.send("a")
    assert started.reached.wait(LONG)
    commit = home.points.hold("store.commit.before")
    started.release()
    assert commit.reached.wait(LONG)
    begun = time.monotonic()
    assert agent.cancel() is True
    assert time.monotonic() - begun < 2
    assert not future.done()  # its ending isn't durable
    commit.release()
    assert future.result(LONG).reason == "aborted"
    assert agent.model.requests == []


@pytest.mark.parametrize("where", ["stream", "back-off", "body"])
def test_a_stop_is_prompt_wherever_the_turn_waits(home, where):
    held = Held()
    script = {
        "stream": [["x", hold("here"), "y"]],
        "back-off": [status(429, headers={"Retry-After": "60"})],
        "body": [call("work")],
    }[where]
    agent = home.agent(script, tools=[held.tool])
    future = agent.send("a")
    here = agent.model.point("here").reached
    until(lambda: agent.status.startswith("retrying") or held.tokens or here.is_set())
    begun = time.monotonic()
    assert agent.cancel() is True
    assert future.result(LONG).reason == "aborted"
    assert time.monotonic() - begun < 5
    assert len(agent.model.requests) == 1


# -- the status ----------------------------------------------------------------------------------------


def test_the_status_says_what_the_agent_does(home):
    quiet, loud = Held("quiet"), Held("loud")
    agent = home.agent([[hold("p"), call("quiet"), call("loud")], "done"], tools=[quiet.tool, loud.tool])
    assert agent.status == "idle"
    future = agent.send("a")
    assert agent.model.point("p").reached.wait(LONG)
    assert agent.status == "running"
    agent.model.point("p").release()
    quiet.wait()
    loud.wait()
    assert agent.status == "running quiet, loud"
    quiet.point.release()
    until(lambda: agent.status == "running loud", "the end of quiet")
    loud.point.release()
    assert future.result(LONG).text == "done"
    agent.wait(LONG)
    assert agent.status == "idle"
    agent.close()
    assert agent.status == "closed"


def test_the_status_names_the_body_that_does_not_hear_a_stop_and_where_it_stands(home):
    agent, held = busy(home, stubborn=True)
    future = agent.send("a")
    held.wait()
    agent.cancel()
    status = agent.status
    assert status.startswith("cancelling (waiting for work): work for 0 s, at ")
    assert " in " in status
    held.point.release()
    assert future.result(LONG).reason == "aborted"
    agent.wait(LONG)
    assert kinds(home.events(agent)) == ["aborted"]
    assert held.ends == ["returned"]
    assert results(home.events(agent)) == {"call_1": (None, "work is done")}


def test_the_status_of_a_stop_without_a_body_is_cancelling(home):
    agent = home.agent(["never"])
    point = home.points.hold("turn.begun")
    agent.send("a")
    assert point.reached.wait(LONG)
    agent.cancel()
    assert agent.status == "cancelling"
    point.release()


# -- the end of the agent ------------------------------------------------------------------------------


def test_after_dispose_nothing_wakes(home):
    agent, held = busy(home, stubborn=True)
    first = agent.send("a")
    held.wait()
    queued = agent.send("b")
    assert agent.close(timeout=SOON) is False
    assert queued.cancelled()
    for late in (agent.send, agent.steer, agent.inject, agent.run):
        with pytest.raises(AgentClosed):
            late("c")
    assert agent.cancel() is True  # the message that is parked
    held.point.release()
    assert agent.close(LONG) is True
    assert (first.result().reason, first.result().cause) == ("aborted", Cause.DISPOSED)
    assert len(home.events(agent, "turn/start")) == 1


def test_close_parks_what_waits_and_cancels_its_futures(home):
    agent, held = busy(home, "later", "later")
    first = agent.send("a")
    held.wait()
    futures = [agent.send("b"), agent.steer("s")]
    assert agent.close() is True
    assert agent.close() is True
    assert first.result().reason == "aborted"
    for future in futures:
        with pytest.raises(CancelledError):
            future.result()
    assert [event.data["cause"] for event in home.stored(agent, "cancel/requested")] == ["disposed"]
    home.reopen()
    again = home.agent(["later", "last"], session=agent.session)
    again.wait(LONG)
    assert len(home.events(again, "turn/start")) == 1
    assert again.run("c").turn == 3
    assert said(again.model.requests[-1])[-4:] == [
        ("user", "s"), ("user", "b"), ("assistant", "later"), ("user", "c")
    ]  # fmt: skip


def test_closing_an_idle_agent_writes_nothing(home):
    agent = home.agent(["one"])
    agent.run("a")
    before = home.stored(agent)
    agent.close()
    assert home.stored(agent) == before


def test_a_host_can_stop_in_two_steps_from_any_thread(home):
    agent, held = busy(home, stubborn=True)
    run = Background(agent.run, "a")
    held.wait()
    assert agent.cancel() is True
    assert agent.close(timeout=SOON) is False
    held.point.release()
    assert agent.close(timeout=LONG) is True
    assert run.result().reason == "aborted"


def test_two_threads_may_close_at_once(home):
    agent, held = busy(home, stubborn=True)
    agent.send("a")
    held.wait()
    both = [Background(agent.close), Background(agent.close)]
    held.point.release()
    assert [one.result() for one in both] == [True, True]
    home.store.open(agent.session).close()  # its lease was given back


def test_a_turn_cannot_wait_for_its_own_agent(home):
    errors = []

    def body(name):
        def ask() -> str:
            """Wait for ourselves."""
            for wait in (agent.wait, agent.close, lambda: agent.run("x")):
                with pytest.raises(RuntimeError) as caught:
                    wait()
                errors.append(str(caught.value))
            return "refused"

        return tool(name=name)(ask)

    tools = [body(name) for name in ("one", "two", "three")]
    agent = home.agent([call("one"), [call("two"), call("three")], "done"], tools=tools)
    assert agent.run("a").text == "done"
    assert len(errors) == 9
    assert len(home.events(agent, "turn/start")) == 1


# -- the store's end -----------------------------------------------------------------------------------


def test_a_lost_lease_stops_the_turn_and_nothing_of_it_gets_into_the_log(home):
    home.broken = True
    held = Held()
    agent = home.agent([call("work"), "never"], tools=[held.tool], session="s")
    future, queued = agent.send("a"), agent.send("b")
    held.wait()
    put_out_of_reach(home.path)
    with Store(home.path) as other:
        thief = other.open("s", steal=True)
        assert thief.report.unknown == ["call_1"]
        mine = agent._session.append  # the owner notices at its next write
        mine(ev.CancelRequested(cause="user"))
        until(lambda: held.ends, "the stop of the body")
        assert held.tokens[0].cause is Cause.DISPOSED
        for waits in (future, queued):
            with pytest.raises(LeaseLost):
                waits.result(LONG)
        with pytest.raises(LeaseLost):
            agent.send("c")
        thief.append(ev.CancelRequested(cause="user"))
        thief.flush()
        events = list(other.read("s"))
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert types(events)[-3:] == ["step/end", "turn/end", "cancel/requested"]
        assert len([event for event in events if event.type == "cancel/requested"]) == 1
        thief.close()


def test_a_failed_store_refuses_and_the_next_open_repairs(home):
    home.broken = True
    held = Held()
    agent = home.agent([call("work"), "never"], tools=[held.tool])
    future, queued = agent.send("a"), agent.send("b")
    held.wait()
    home.points.fail("store.commit.before", StoreFailed("the disk is gone", path=home.path))
    held.point.release()
    for waits in (future, queued):
        with pytest.raises(StoreFailed):
            waits.result(LONG)
    agent.wait(LONG)
    with pytest.raises(StoreFailed):
        agent.send("c")
    assert agent.cancel() is False
    assert len(agent.model.requests) == 1
    home.reopen()
    home.broken = False
    again = home.agent(["two", "three"], session=agent.session)
    assert again.opened.turn == 1
    assert again.run("d").turn == 3
    assert kinds(home.events(again)) == ["interrupted", "completed", "completed"]
