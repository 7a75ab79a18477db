"""What waits for a turn: order, parking, futures, and what a message's own limits do."""

import concurrent.futures
import threading
from concurrent.futures import CancelledError

import pytest
from runtime_parts import LONG, SOON, Background, Held, kinds, run_out, until

from syncagent.cancel import CancellationToken, Cause
from syncagent.errors import AgentClosed, StoreFull
from syncagent.log import events as ev
from syncagent.runtime.hooks import Reject
from syncagent.runtime.inbox import blocks_of
from syncagent.testing import call, hold

pytestmark = pytest.mark.concurrent


def busy(home, *more, **options):
    held = Held(**options)
    agent = home.agent([call("work"), *more], tools=[held.tool])
    return agent, held


def entered(home, agent):
    return [event.body.message.text for event in home.events(agent, "user/message")]


# -- order ---------------------------------------------------------------------------------------------


def test_a_turn_takes_all_of_next_step_and_one_of_next_turn(home):
    agent, held = busy(home, "one", "two", "three")
    agent.send("a")
    held.wait()
    first, second = agent.send("t1"), agent.send("t2")
    agent.cancel(keep_inbox=True)
    agent.wait(LONG)
    agent.inject("s1")
    agent.inject("s2")
    agent.send("t3").result(LONG)
    assert (first.result(LONG).turn, second.result(LONG).turn) == (2, 3)
    assert entered(home, agent) == ["a", "s1", "s2", "t1", "t2", "t3"]
    assert [event.body.turn for event in home.events(agent, "user/message")] == [1, 2, 2, 2, 3, 4]


def test_the_claim_is_logged_before_the_hook_runs(home):
    seen = []

    def pre_step(view, *, token):
        logged = [event.type for event in home.events(agent)]
        seen.append((logged, [message.text for message in view.messages]))

    agent = home.agent(["one"], pre_step=pre_step)
    agent.run("a")
    assert seen == [(["inbox/put", "turn/start", "inbox/taken"], ["a"])]


def test_a_message_has_an_id_of_its_own_and_what_is_no_unicode_becomes_a_mark(home):
    agent = home.agent(["one", "two"])
    agent.run("a\ud800b")
    agent.run([{"type": "text", "text": "c"}, {"type": "text", "text": "d\udfff"}])
    puts = [event.body.message for event in home.stored(agent, "inbox/put")]
    assert [put.content for put in puts] == [
        [{"type": "text", "text": "a\ufffdb"}],
        [{"type": "text", "text": "c"}, {"type": "text", "text": "d\ufffd"}],
    ]
    assert len({put.id for put in puts}) == 2


@pytest.mark.parametrize("content", ["", " \n", [], [{"type": "text"}], [{"text": "x"}]], ids=repr)
def test_what_says_nothing_is_no_message(home, content):
    agent = home.agent(["never"])
    with pytest.raises(ValueError):
        agent.send(content)
    assert home.events(agent) == []


@pytest.mark.parametrize("content", [None, 5, b"x", ["x"], {"type": "text", "text": "x"}], ids=repr)
def test_what_is_no_text_is_no_message(content):
    with pytest.raises(TypeError):
        blocks_of(content)


# -- parked --------------------------------------------------------------------------------------------


def test_a_parked_inbox_survives_a_restart_and_does_not_run_by_itself(home):
    agent, held = busy(home)
    agent.send("a")
    held.wait()
    agent.send("q1")
    agent.send("q2")
    agent.cancel(keep_inbox=True)
    agent.wait(LONG)
    last = agent.seq
    home.reopen()
    again = home.agent(["r1", "r2", "r3"], session=agent.session)
    assert again.opened is None
    again.wait(LONG)
    assert again.seq == last
    assert again.run("new").turn == 4
    assert entered(home, again) == ["a", "q1", "q2", "new"]
    assert home.events(again, "turn/end")[-1].body.turn == 4


def test_a_parked_message_can_be_dropped_by_a_stop_of_the_idle_agent(home):
    agent, held = busy(home, "fresh")
    agent.send("a")
    held.wait()
    parked = agent.send("q1")
    agent.cancel(keep_inbox=True)
    agent.wait(LONG)
    assert agent.cancel() is True
    assert parked.cancelled()
    assert agent.cancel() is False
    assert agent.run("b").turn == 2
    assert entered(home, agent) == ["a", "b"]


def test_a_steer_wakes_what_is_parked_in_next_turn_too(home):
    agent, held = busy(home, "one", "two")
    agent.send("a")
    held.wait()
    q1, q2 = agent.send("q1"), agent.send("q2")
    agent.cancel(keep_inbox=True)
    agent.wait(LONG)
    agent.steer("s")
    assert (q1.result(LONG).turn, q2.result(LONG).turn) == (2, 3)
    assert entered(home, agent) == ["a", "s", "q1", "q2"]


# -- dropped and put back ------------------------------------------------------------------------------


def test_a_stop_lists_what_it_dropped_and_a_reopened_session_lists_it_too(home):
    agent, held = busy(home)
    first = agent.send("a")
    held.wait()
    for text in ("1", "2", "3"):
        agent.send(text)
    agent.cancel()
    assert [message.text for message in first.result(LONG).dropped] == ["1", "2", "3"]
    assert [message.text for message in agent.dropped()] == ["1", "2", "3"]
    home.reopen()
    again = home.agent(["r1", "r2"], session=agent.session)
    dropped = again.dropped()
    assert [message.text for message in dropped] == ["1", "2", "3"]
    futures = again.requeue([dropped[2].id, dropped[0].id])
    assert [future.result(LONG).text for future in futures] == ["r1", "r2"]
    assert entered(home, again) == ["a", "3", "1"]
    assert [message.text for message in again.dropped()] == ["2"]


def test_only_dropped_messages_can_be_put_back_and_only_once(home):
    agent, held = busy(home, "r1")
    agent.send("a")
    held.wait()
    agent.send("lost")
    agent.cancel()
    agent.wait(LONG)
    (lost,) = agent.dropped()
    entered_id = home.events(agent, "user/message")[0].body.message.id
    for wrong in (["m-999"], [entered_id], [lost.id, "x"], [""]):
        before = agent.seq
        with pytest.raises(ValueError, match="not dropped"):
            agent.requeue(wrong)
        assert agent.seq == before
    (future,) = agent.requeue([lost.id, lost.id])
    assert future.result(LONG).text == "r1"
    with pytest.raises(ValueError):
        agent.requeue([lost.id])
    assert agent.requeue([]) == []


def test_a_message_that_was_put_back_is_not_dropped_by_its_older_handle(home):
    agent, held = busy(home, "r1", stubborn=True)
    agent.send("a")
    held.wait()
    first = agent.send("b")
    dropping, going_on = threading.Event(), threading.Event()

    def slow(future):
        dropping.set()
        assert going_on.wait(LONG)

    # The stop runs the callbacks of a dropped future when it no longer holds anything.
    first._done_callbacks.insert(0, slow)
    stopping = Background(agent.cancel)
    assert dropping.wait(LONG)
    (again,) = agent.requeue([message.id for message in agent.dropped()])
    going_on.set()
    assert stopping.result() is True
    held.point.release()
    assert again.result(LONG).text == "r1"


def test_a_message_is_put_back_as_it_was(home):
    message = ev.Message(
        id="m", role="user", content=[{"type": "text", "text": "a"}], source="chat", extra={"colour": "red"}
    )
    with home.store.create("s") as session:
        session.append(ev.InboxPut(target="next_step", message=message, wake=True))
        session.append(ev.InboxTaken(ids=["m"], outcome="canceled"))
    agent = home.agent(["fine"], session="s")
    (future,) = agent.requeue(["m"])
    assert future.result(LONG).text == "fine"
    (entered_now,) = home.events(agent, "user/message")
    assert entered_now.body.message == message
    assert home.events(agent, "inbox/put")[-1].body.target == "next_step"


def test_a_message_that_was_put_back_has_not_arrived_with_its_older_handle(home):
    """Both have the same id, and the older one's sender hears of its own put only."""
    agent = home.agent(["one", "two"])

    def held(fn, *args):
        flush = home.points.hold("store.flush")
        thread = Background(fn, *args)
        assert flush.reached.wait(LONG)
        return flush, thread

    flush_a, sending_a = held(agent.send, "a")
    assert agent.cancel() is True
    flush_b, sending_b = held(agent.send, "b")
    flush_again, again = held(agent.requeue, [agent.dropped()[0].id])
    flush_a.release()
    assert sending_a.result().cancelled()
    flush_b.release()
    assert sending_b.result().result(LONG).text == "one"
    agent.wait(LONG)
    assert entered(home, agent) == ["b"]
    flush_again.release()
    (future,) = again.result()
    assert future.result(LONG).text == "two"
    assert entered(home, agent) == ["b", "a"]


def test_what_a_rejected_step_had_claimed_can_be_put_back(home):
    answers = [Reject("no")]
    agent = home.agent(["fine"], pre_step=lambda view, *, token: answers.pop() if answers else None)
    assert agent.run("a").reason == "blocked"
    (future,) = agent.requeue([agent.dropped()[0].id])
    assert future.result(LONG).text == "fine"


# -- futures -------------------------------------------------------------------------------------------


def test_a_future_that_its_holder_cancels_withdraws_the_message(home):
    agent, held = busy(home, "done", "two")
    first = agent.send("a")
    held.wait()
    gone, stays = agent.send("gone"), agent.send("stays")
    assert gone.cancel() is True
    assert concurrent.futures.wait([gone], timeout=LONG).done == {gone}
    assert first.cancel() is False  # it runs: only a stop ends it
    held.point.release()
    assert (first.result(LONG).text, stays.result(LONG).text) == ("done", "two")
    assert entered(home, agent) == ["a", "stays"]
    assert [message.text for message in agent.dropped()] == ["gone"]


def test_a_parked_message_whose_future_was_cancelled_leaves_the_log(home):
    agent = home.agent(["one"])
    note = agent.inject("note")
    assert note.cancel() is True
    until(lambda: home.events(agent, "inbox/taken"), "the withdrawal")
    assert agent.run("a").text == "one"
    assert entered(home, agent) == ["a"]


def test_waiters_for_several_futures_hear_of_dropped_ones(home):
    agent, held = busy(home)
    first = agent.send("a")
    held.wait()
    futures = [first, agent.send("b"), agent.steer("c")]
    waiting = Background(concurrent.futures.wait, futures, timeout=LONG)
    agent.cancel()
    assert waiting.result().not_done == set()
    assert list(concurrent.futures.as_completed(futures, timeout=LONG))


@pytest.mark.parametrize("exc", [ValueError, SystemExit, KeyboardInterrupt], ids=lambda exc: exc.__name__)
def test_a_callback_that_raises_ends_neither_the_agent_nor_another_future(home, exc, caplog):
    agent, held = busy(home, "two", "three")

    def fail(future):
        raise exc("no")

    first = agent.send("a")
    held.wait()
    second = agent.send("b")
    first.add_done_callback(fail)
    second.add_done_callback(fail)
    held.point.release()
    assert first.result(LONG).text == "two"
    assert second.result(LONG).text == "three"
    agent.wait(LONG)
    assert agent.status == "idle"


def test_every_future_settles_when_the_agent_closes(home):
    agent, held = busy(home)
    futures = [agent.send("a")]
    held.wait()
    futures += [agent.send("b"), agent.steer("c"), agent.inject("d")]
    agent.close()
    assert all(future.done() for future in futures)
    assert futures[0].result().cause is Cause.DISPOSED
    for future in futures[1:]:
        with pytest.raises(CancelledError):
            future.result()
    (end,) = home.stored(agent, "turn/end")
    assert not [event for event in home.stored(agent) if event.seq > end.seq]


# -- a message on its way ------------------------------------------------------------------------------


def test_a_message_is_durable_before_send_returns(home):
    agent = home.agent(["one"])
    commit = home.points.hold("store.commit.before")
    sending = Background(agent.send, "a")
    assert commit.reached.wait(LONG)
    sending.thread.join(SOON)
    assert not sending.done
    assert home.stored(agent) == [] and agent.model.requests == []
    commit.release()
    future = sending.result()
    assert home.stored(agent)[0].type == "inbox/put"
    assert future.result(LONG).text == "one"


def test_a_send_that_cannot_be_made_durable_raises_and_withdraws(home):
    agent = home.agent(["one"])
    home.points.fail("store.commit.before", StoreFull("no space", path=home.path))
    with pytest.raises(StoreFull):
        agent.send("a")
    assert agent.status == "idle"
    assert agent.run("b").text == "one"
    assert entered(home, agent) == ["b"]
    assert [event.type for event in home.stored(agent)][:3] == ["inbox/put", "inbox/taken", "inbox/put"]


def test_a_steer_that_cannot_be_made_durable_is_not_claimed_meanwhile(home):
    held = Held()
    agent = home.agent([call("work"), "fine", "later"], tools=[held.tool])
    first = agent.send("a")
    held.wait()
    flush = home.points.hold("store.flush")
    steering = Background(agent.steer, "s")
    assert flush.reached.wait(LONG)
    held.point.release()  # the turn goes on to its next step, and the message has not arrived
    assert first.result(LONG).text == "fine"
    home.points.fail("store.commit.before", StoreFull("no space", path=home.path))
    agent._session.append(ev.CancelRequested(cause="user"))  # something that is not durable yet
    flush.release()
    with pytest.raises(StoreFull):
        steering.result()
    agent.wait(LONG)
    assert entered(home, agent) == ["a"]
    assert agent.run("b").text == "later"


def test_messages_run_in_the_order_of_their_puts_even_if_a_later_one_arrives_first(home):
    agent = home.agent(["one", "two"])
    flush = home.points.hold("store.flush")
    early = Background(agent.send, "a")
    assert flush.reached.wait(LONG)
    late = agent.send("b")
    assert late.result(LONG).turn == 2
    assert entered(home, agent) == ["a", "b"]
    flush.release()
    assert early.result().result(LONG).turn == 1


def test_a_message_that_a_close_overtakes_is_parked(home):
    agent = home.agent(["later"])
    flush = home.points.hold("store.flush")
    sending = Background(agent.send, "a")
    assert flush.reached.wait(LONG)
    closing = Background(agent.close)
    until(lambda: agent._driver.closed, "the close")
    closing.thread.join(SOON)
    assert not closing.done  # the message is in the log, so the session is not given back yet
    flush.release()
    assert sending.result().cancelled()
    assert closing.result() is True
    assert [event.type for event in home.stored(agent)] == ["inbox/put"]


# -- limits of a message -------------------------------------------------------------------------------


def test_a_time_out_stops_the_messages_turn_and_parks_the_queue(home):
    agent, held = busy(home, "r1", "r2")
    waiting = Background(agent.run, "a", timeout=LONG)
    held.wait()
    queued = agent.send("b")
    run_out()
    result = waiting.result()
    assert (result.reason, result.cause, result.dropped) == ("aborted", Cause.TIMEOUT, [])
    agent.wait(LONG)
    assert kinds(home.events(agent)) == ["aborted"]
    assert not queued.done()
    (stop,) = home.events(agent, "cancel/requested")
    assert stop.data == {"cause": "timeout", "via": "api", "keep_inbox": True, "scope": "tree"}
    assert agent.run("c").turn == 3
    assert queued.result(LONG).turn == 2


def test_a_time_out_of_a_message_that_waits_withdraws_it_alone(home):
    agent, held = busy(home, "two", "three")
    first = agent.send("a")
    held.wait()
    result = agent.run("late", timeout=0.05)
    assert (result.turn, result.reason, result.cause) == (None, "aborted", Cause.TIMEOUT)
    assert not held.tokens[0].cancelled
    after = agent.send("b")
    held.point.release()
    assert first.result(LONG).text == "two"
    assert after.result(LONG).turn == 2
    assert entered(home, agent) == ["a", "b"]


@pytest.mark.parametrize("limit", ["timeout", "token"])
def test_a_limit_ends_the_wait_for_the_disk_too(home, limit):
    agent = home.agent(["two"])
    commit = home.points.hold("store.commit.before")
    with CancellationToken() as token:
        limits = {"timeout": 0.05} if limit == "timeout" else {"token": token}
        running = Background(agent.run, "a", **limits)
        assert commit.reached.wait(LONG)
        token.cancel("timeout")
        result = running.result()  # while the writer is held
    assert (result.turn, result.reason, result.cause) == (None, "aborted", Cause.TIMEOUT)
    commit.release()
    assert agent.run("b").text == "two"
    assert entered(home, agent) == ["b"]
    assert [message.text for message in agent.dropped()] == ["a"]


def test_a_callers_token_stops_its_own_turn_and_no_other(home):
    with CancellationToken() as mine, CancellationToken() as other:
        agent, held = busy(home, "r1")
        first = agent.send("a", token=mine)
        held.wait()
        second = agent.send("b", token=other)
        other.cancel("hook")
        assert second.cancelled()
        assert not held.tokens[0].cancelled
        mine.cancel("hook", "enough")
        result = first.result(LONG)
        assert (result.reason, result.cause) == ("aborted", Cause.HOOK)
        agent.wait(LONG)
        assert agent.run("c").turn == 2


@pytest.mark.parametrize("pending", [True, False], ids=["pending", "running"])
def test_a_callers_event_stops_its_message(home, pending):
    event = threading.Event()
    agent, held = busy(home, "r1")
    first = agent.send("a", **({} if pending else {"token": event}))
    held.wait()
    mine = agent.send("b", token=event) if pending else first
    event.set()
    if pending:
        with pytest.raises(CancelledError):
            mine.result(LONG)
        assert not held.tokens[0].cancelled
        held.point.release()
    assert first.result(LONG).reason == ("completed" if pending else "aborted")


def test_a_token_that_fired_before_withdraws_the_message_at_once(home):
    agent = home.agent(["never"])
    with CancellationToken() as token:
        token.cancel("timeout")
        result = agent.run("a", token=token)
    assert (result.turn, result.reason, result.cause) == (None, "aborted", Cause.TIMEOUT)
    assert agent.run("b", timeout=0).reason == "aborted"
    assert agent.model.requests == []


def test_limits_end_with_their_message(home):
    agent = home.agent(["one", ["two", hold("p")], "three"])
    event = threading.Event()
    with CancellationToken() as token:
        assert agent.run("a", token=token, timeout=60).text == "one"
        future = agent.send("b", token=event, timeout=60)
        assert agent.model.point("p").reached.wait(LONG)
        token.cancel()  # of a message that is long done
        agent.model.point("p").release()
        assert future.result(LONG).text == "two"
        event.set()
        assert agent.run("c").text == "three"
    until(lambda: not [t for t in threading.enumerate() if t.name.startswith("syncagent-deadline")])


def test_a_deadline_that_fires_as_the_turn_ends_changes_nothing(home):
    agent = home.agent(["one", "two"])
    point = home.points.hold("turn.handed_over")
    running = Background(agent.run, "a", timeout=LONG)
    assert point.reached.wait(LONG)
    run_out()
    point.release()
    assert running.result().reason == "completed"
    assert home.events(agent, "cancel/requested") == []
    assert agent.run("b").text == "two"


@pytest.mark.parametrize("timeout", [-1, float("nan"), "5"], ids=repr)
def test_a_time_out_that_is_no_time_is_refused_before_anything_is_accepted(home, timeout):
    agent = home.agent(["one"])
    with pytest.raises((ValueError, TypeError)):
        agent.run("a", timeout=timeout)
    with pytest.raises(TypeError):
        agent.run("a", token=object())
    assert home.events(agent) == []


def test_a_refused_message_leaves_no_watch_behind(home):
    agent = home.agent(["one"])
    with pytest.raises(ValueError):
        agent.send([{"type": "text"}], token=threading.Event(), timeout=100)
    agent.close()
    with pytest.raises(AgentClosed):
        agent.send("a", token=threading.Event(), timeout=100)
