"""What tests of the runtime share: a store with its agents, tools that stop, and looks into a log."""

import contextlib
import threading
import time

from syncagent.cancel import CancellationToken
from syncagent.errors import StoreError
from syncagent.runtime.agent import Agent
from syncagent.runtime.store import Store
from syncagent.boundary.tools.base import tool
from syncagent.testing import FailPoints, Point, ScriptedModel, assert_log

#: Seconds after which a test gives up waiting for what must come.
LONG = 30
#: Seconds in which something that nothing holds up would surely have happened.
SOON = 0.3


class Home:
    """One store, the agents that a test makes on it, and at the end the check of every log.

    `broken` says that the test has broken the store, so that turns may be open in the file: they are
    closed by the next open, and the logs are checked after that.
    """

    def __init__(self, path):
        self.path = str(path)
        self.points = FailPoints()
        self.store = Store(self.path, points=self.points)
        self.broken = False
        self._agents = []

    def agent(self, script, **options):
        """An agent on a script, or on a model."""
        model = script if hasattr(script, "stream") else ScriptedModel(script)
        made = Agent(model, store=options.pop("store", self.store), **options)
        made.model = model
        self._agents.append(made)
        return made

    def events(self, agent, type=None):
        """What the agent's session holds now, durable or not; of one type if that is given."""
        return list(agent._session.events(types=None if type is None else [type]))

    def stored(self, agent, type=None):
        """The same, of what is in the file."""
        events = self.store.read(agent.session)
        return [event for event in events if type is None or event.type == type]

    def reopen(self):
        """Close all and open the file again, as another process would."""
        self.close()
        self.points = FailPoints()
        self.store = Store(self.path, points=self.points)
        return self.store

    def close(self):
        self.points.clear()
        broken = contextlib.suppress(*((StoreError,) if self.broken else ()))
        for agent in self._agents:
            release(agent)
        try:
            for agent in self._agents:
                with broken:
                    assert agent.close(LONG), f"the agent of {agent.session} does not end: {agent.status}"
        finally:
            self._agents = []
            with broken:
                self.store.close()

    def check(self):
        """Every rule holds in every session, and what a kill or a broken store left can be closed."""
        with Store(self.path) as store:
            if not self.broken:
                assert_log(store)
            for info in store.sessions():
                store.open(info.id).close()
            assert_log(store)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()
        if exc[0] is None:
            self.check()


def release(agent):
    """Let every point of the agent's model go, whether anybody stands there or not."""
    script = getattr(agent.model, "_script", None)
    if script is not None:
        script.release_all()


class Held:
    """A tool whose body stops until the test lets it go, or its token is cancelled.

    A stubborn one doesn't look at its token. `tokens` are those it got, `ends` how each body ended.
    """

    def __init__(self, name="work", *, stubborn=False, returns=None, **options):
        self.point = Point(name)
        self.tokens = []
        self.ends = []

        def body(token: CancellationToken):
            """Work until told."""
            self.tokens.append(token)
            try:
                stop(self.point, token=None if stubborn else token)
            except BaseException as exc:
                self.ends.append(type(exc).__name__)
                raise
            self.ends.append("returned")
            return returns if returns is not None else f"{name} is done"

        self.tool = tool(name=name, **options)(body)

    def wait(self):
        assert self.point.reached.wait(LONG), f"the body of {self.point.name} never began"


def stop(point, *, token=None):
    """Stop at a point until it is released, or the token is cancelled."""
    if token is None:
        point.pause(LONG)
        return
    woken = threading.Event()
    point.when_released(woken.set)
    with token.on_cancel(woken.set):
        point.reached.set()
        assert woken.wait(LONG), f"nobody came for {point.name}"
    token.raise_if_cancelled()


class Background:
    """A function on a thread of its own; `result()` gives what it returned, or raises what it raised."""

    def __init__(self, fn, *args, **options):
        self._outcome = []

        def run():
            try:
                self._outcome.append((fn(*args, **options), None))
            except BaseException as exc:
                self._outcome.append((None, exc))

        self.thread = threading.Thread(target=run)
        self.thread.start()

    @property
    def done(self):
        return not self.thread.is_alive()

    def result(self, timeout=LONG):
        self.thread.join(timeout)
        assert self._outcome, "the thread is still busy"
        value, error = self._outcome[0]
        if error is not None:
            raise error
        return value


def run_out():
    """Have every deadline that is set run out now: its timer's own call, made by this thread."""
    timers = [thread for thread in threading.enumerate() if thread.name == "syncagent-deadline"]
    assert timers, "no deadline is set"
    for timer in timers:
        timer.function(*timer.args, **timer.kwargs)


def until(condition, what="that"):
    """Wait until a condition holds that nobody announces."""
    end = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < end, f"{what} never happened"
        time.sleep(0.002)  # nobody announces it


def types(events, *without):
    """The types of events, without chunks and the inbox's, which stand anywhere."""
    skip = {"assistant/chunk", "tool/chunk", "inbox/put", "inbox/taken", "request/header", *without}
    return [event.type for event in events if event.type not in skip]


def results(events):
    """The code (None for a success) and the text of each call's result, by call id."""
    found = {}
    for event in events:
        if event.type == "tool/result":
            text = "\n".join(block.get("text", "") for block in event.body.content)
            found.setdefault(event.body.call_id, (event.body.code, text))
    return found


def kinds(events):
    """How each turn ended, in order."""
    return [event.body.kind for event in events if event.type == "turn/end"]


def said(request):
    """What a request says, as (role, text) with the texts of results too."""
    lines = []
    for message in request.messages:
        for block in message.content:
            if block["type"] == "tool_result":
                lines.append(("tool", "\n".join(part.get("text", "") for part in block["content"])))
            elif block["type"] == "tool_call":
                lines.append(("call", block["name"]))
            else:
                lines.append((message.role, block["text"]))
    return lines
