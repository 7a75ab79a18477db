"""The locks: what a guard is, and that nobody takes two in the wrong order or blocks with one held."""

import threading

import pytest
from owners import put_out_of_reach
from runtime_parts import LONG, Background, Held, Home, kinds, until

from syncagent.boundary.process.client import Processes
from syncagent.boundary.store.sqlite import SQLiteStore
from syncagent.boundary.tools.base import CallContext, tool
from syncagent.boundary.tools.bash import bash
from syncagent.errors import LeaseLost, StoreFull
from syncagent.runtime import locks
from syncagent.runtime.hooks import Continue
from syncagent.runtime.locks import Guard
from syncagent.runtime.store import Store
from syncagent.testing import ScriptedModel, call, cut, hold

pytestmark = pytest.mark.concurrent


# -- a guard -------------------------------------------------------------------------------------------


def test_a_guard_knows_whether_the_calling_thread_holds_it():
    guard = locks.guard("agent")
    assert not guard.held
    with guard:
        assert guard.held
        assert Background(lambda: guard.held).result() is False
    assert not guard.held


def test_a_guard_is_not_taken_twice_by_one_thread():
    guard = locks.guard("agent")
    with guard, pytest.raises(AssertionError, match="agent lock is taken twice"):
        with guard:
            pass
    with guard:
        pass


def test_a_guard_is_released_by_an_exception():
    guard = locks.guard("agent")
    with pytest.raises(KeyError):
        with guard:
            raise KeyError
    assert Background(lambda: guard.__enter__().held).result() is True


def test_a_wait_lets_others_in_and_takes_the_guard_again():
    guard = locks.guard("session")
    inside = threading.Event()

    def wait():
        with guard:
            inside.set()
            told = guard.wait(LONG)
            return told, guard.held

    waiting = Background(wait)
    assert inside.wait(LONG)
    with guard:
        guard.notify_all()
    assert waiting.result() == (True, True)
    with guard:
        assert guard.wait(0.01) is False
        assert guard.held


# -- the order -----------------------------------------------------------------------------------------

#: From the outside in. "store sessions" is taken alone.
ORDER = ["store sessions", "agent", "session"]
HELD = threading.local()


def held_now():
    if not hasattr(HELD, "names"):
        HELD.names = []
    return HELD.names


class StrictGuard(Guard):
    """A guard that raises when it is taken in the wrong order, and notes what was broken."""

    broken = []

    def __enter__(self):
        for name in held_now():
            if ORDER.index(name) >= ORDER.index(self.name) or name == "store sessions":
                self.complain(f"{self.name} is taken while {name} is held")
        super().__enter__()
        held_now().append(self.name)
        return self

    def __exit__(self, *exc):
        held_now().remove(self.name)
        super().__exit__(*exc)

    def wait(self, timeout=None):
        if held_now() != [self.name]:
            self.complain(f"a wait on {self.name} with {held_now()} held")
        held_now().remove(self.name)
        try:
            return super().wait(timeout)
        finally:
            held_now().append(self.name)

    @classmethod
    def complain(cls, text):
        cls.broken.append(text)
        raise AssertionError(text)


def free(what):
    """A boundary is entered: no lock of ours may be held."""
    if held_now():
        StrictGuard.complain(f"{what} is entered with {held_now()} held")


@pytest.fixture
def strict(monkeypatch, tmp_path):
    """A home whose locks are strict, and whose boundaries look for held locks."""
    StrictGuard.broken.clear()
    monkeypatch.setattr(locks, "guard", StrictGuard)

    def checked(cls, name):
        original = getattr(cls, name)

        def enter(*args, **options):
            free(f"{cls.__name__}.{name}")
            return original(*args, **options)

        monkeypatch.setattr(cls, name, enter)

    for name in ("flush", "retry", "create", "open", "release", "close", "read", "inspect", "sessions"):
        checked(SQLiteStore, name)
    for name in ("run", "kill_now"):
        checked(Processes, name)
    checked(threading.Thread, "join")
    with Home(tmp_path / "runs.db") as home:
        yield home
    assert StrictGuard.broken == []


def test_a_strict_guard_notices_a_wrong_order(monkeypatch):
    agent, session = StrictGuard("agent"), StrictGuard("session")
    with agent, session:
        pass
    with session, pytest.raises(AssertionError, match="agent is taken while session is held"):
        with agent:
            pass
    with agent, session, pytest.raises(AssertionError, match="a wait on session"):
        session.wait(0)
    with agent, pytest.raises(AssertionError, match="entered"):
        free("a boundary")
    StrictGuard.broken.clear()


class FreeModel(ScriptedModel):
    def stream(self, request, *, token):
        free("the model")
        with token.on_cancel(lambda: free("a wake-up")):
            for chunk in super().stream(request, token=token):
                free("the stream")
                yield chunk


def busy_agent(home, script, **options):
    def at(name):
        def hook(view=None, *, token):
            free(name)
            if name == "turn_stopping" and view.text == "more":
                return Continue("go on")
            return "" if name == "system" else None

        return hook

    def work(context: CallContext):
        """Work."""
        free("a body")
        with context.token.on_cancel(lambda: free("a wake-up")):
            context.emit("out")
        return "ok"

    return home.agent(
        FreeModel(script, retry_after_output=True),
        tools=[tool(work), bash, *options.pop("tools", ())],
        **{name: at(name) for name in ("system", "pre_step", "request", "turn_stopping")},
        **options,
    )


def test_no_lock_is_taken_in_the_wrong_order_nor_held_at_a_boundary_in_a_busy_agent(strict):
    held = Held("held", timeout=60)
    script = [
        ["a", cut()],
        ["Look.", call("work"), call("work"), call("bash", {"command": "echo x"}), call("nothing")],
        call("bash", {"command": "echo y"}),
        "more",
        "done",
        call("held"),
        "after",
        *["more turns"] * 20,
    ]
    agent = busy_agent(strict, script, tools=[held.tool])
    following = Background(lambda: [free("a follower") for event in agent.follow()])
    first = agent.send("one", timeout=60)
    first.add_done_callback(lambda future: free("a callback"))
    assert first.result(LONG).text == "done"
    second, steered = agent.send("two", token=threading.Event()), agent.steer("s")
    held.wait()
    queued = [agent.send("q1", timeout=60), agent.send("q2"), agent.inject("n")]
    for future in queued:
        future.add_done_callback(lambda future: free("a callback"))
    queued[1].cancel()
    assert agent.status == "running held"
    agent.cancel()
    assert second.result(LONG).reason == "aborted"
    assert agent.requeue([message.id for message in agent.dropped()][:1])[0].result(LONG)
    assert agent.run("three", timeout=0).reason == "aborted"
    agent.wait(LONG)
    agent.cancel(keep_inbox=True)
    assert strict.store.load(agent.session) == strict.events(agent)
    strict.store.inspect(agent.session)
    agent.kill()
    agent.close()
    following.result()
    assert steered.done()


def test_no_lock_is_held_when_a_deadline_or_a_callers_token_fires(strict):
    agent = busy_agent(strict, [["a", hold("p")], ["b", hold("p2")], "c"])
    assert agent.run("a", timeout=0.5).reason == "aborted"
    event = threading.Event()
    future = agent.send("b", token=event)
    until(lambda: agent.model.point("p2").reached.is_set() or future.done())
    event.set()
    assert future.result(LONG).reason == "aborted"


def test_no_lock_is_held_when_the_store_fails_and_recovers(strict):
    agent = busy_agent(strict, ["a", "b", "c", "d"])
    agent.run("a")
    strict.points.fail("store.commit.before", StoreFull("no", path=strict.path))
    with pytest.raises(StoreFull):
        agent.send("b")
    assert agent.run("c").reason == "completed"


def test_no_lock_is_held_when_another_store_takes_the_session(strict):
    strict.broken = True
    held = Held("held")
    agent = busy_agent(strict, [call("held"), "x"], tools=[held.tool])
    future = agent.send("a")
    held.wait()
    put_out_of_reach(strict.path)
    with Store(strict.path) as other:
        with other.open(agent.session, steal=True):
            for notices in (lambda: agent.inject("x"), lambda: future.result(LONG)):
                with pytest.raises(LeaseLost):
                    notices()


@pytest.mark.once
def test_many_threads_at_once_break_no_order(strict):
    agent = busy_agent(strict, (["a", call("work")] if number % 3 == 0 else "b" for number in range(1000)))
    stop = threading.Event()

    def sender():
        for number in range(4):
            agent.send(f"{number}", timeout=30)
            agent.steer("s")
            agent.inject("i")

    def stopper():
        while not stop.is_set():
            agent.cancel(keep_inbox=bool(len(agent.status) % 2))

    def looker():
        while not stop.is_set():
            agent.status, agent.dropped(), strict.store.sessions()

    stoppers = [Background(stopper), Background(looker)]
    for thread in [Background(sender) for _ in range(4)]:
        thread.result()
    stop.set()
    for thread in stoppers:
        thread.result()
    agent.send("wake").result(LONG)
    agent.wait(LONG)
    assert set(kinds(strict.events(agent))) <= {"completed", "aborted", "error"}
