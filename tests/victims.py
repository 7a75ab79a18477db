"""Runtimes in processes of their own, to be killed with -9, held at a point, or let compete.

    with Nursery() as nursery:
        victim = nursery.start("work", path=..., script=..., messages=...)
        victim.wait_for("asked")
        victim.kill()

A `Nursery` is one warm process that has imported everything and forks each victim, so that a victim
costs no start of an interpreter. It never opens a store itself. A victim talks to its test in small
JSON records over a socket; the last record, ("exit", status), is of whoever has waited for it.
"""

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import traceback

from processes import DEADLINE, ROOT, state_of

from syncagent.boundary.models.chat import ChatModel
from syncagent.boundary.tools.base import tool
from syncagent.boundary.tools.bash import bash_tool
from syncagent.errors import SessionLive
from syncagent.log import events as ev
from syncagent.runtime.agent import Agent
from syncagent.runtime.store import Store
from syncagent.testing import FailPoints, ScriptedModel, call, stall

HERE = os.path.dirname(os.path.abspath(__file__))
LONGEST = 1 << 16

#: How a process that was killed with -9 ends.
KILLED = -signal.SIGKILL


class Channel:
    """One end of the talk between a test and its victim: records, each a list, in order."""

    def __init__(self, sock):
        self.socket = sock

    def say(self, *words):
        self.socket.send(json.dumps(words).encode())

    def hear(self):
        """The next record; None when the other side is gone."""
        data = self.socket.recv(LONGEST)
        return json.loads(data) if data else None


def make_channels():
    """Two ends of a talk."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(DEADLINE)
    return Channel(ours), Channel(theirs)


class Nursery:
    """The warm process, as a test holds it. Leaving the block kills every victim that is left."""

    def __enter__(self):
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", "import victims; victims.nurse()", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join([ROOT, HERE])},
                start_new_session=True,
            )
        return self

    def __exit__(self, *exc):
        self._control.close()
        self._process.wait(DEADLINE)

    def start(self, program, **options):
        ours, theirs = make_channels()
        with theirs.socket:
            order = json.dumps([program, options], default=str).encode()
            socket.send_fds(self._control, [order], [theirs.socket.fileno()])
        return Victim(ours)


class Victim:
    """One victim, as its test holds it. `said` are its records so far, `pid` is its process."""

    def __init__(self, channel):
        self._channel = channel
        self.said = []
        self.status = None
        (self.pid,) = self.wait_for("begun")

    def next(self):
        record = self._channel.hear()
        if record[0] == "exit":
            self.status = record[1]
            self._channel.socket.close()
        self.said.append(record)
        return record

    def wait_for(self, word):
        """Read until the victim says this word; return what it says with it."""
        while True:
            first, *rest = self.next()
            if first == word:
                return rest
            assert first != "exit", f"it ended before {word!r}: {self.said}"

    def heard(self, word):
        """What it has said with this word so far, each time."""
        return [rest for first, *rest in self.said if first == word]

    def tell(self, *words):
        self._channel.say(*words)

    def kill(self):
        """Kill it as `kill -9` does, and wait until it is gone."""
        assert self.status is None, self.said  # else its pid may be somebody else's by now
        os.kill(self.pid, signal.SIGKILL)
        assert self.end() == KILLED, self.said

    def end(self):
        """Wait for its end; return the exit code, negative for a signal."""
        while self.status is None:
            self.next()
        return self.status

    def finish(self):
        assert self.end() == 0, self.said

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        if self.status is None:
            self.kill()

    def left(self, mark):
        """Living processes that it has left: marked tools, and its supervisor with what that forked."""
        return mark.pids() + supervisors_of(self.pid)


def supervisors_of(pid):
    """The supervisor of a process carries its pid as the last word of its command line."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):  # it has ended
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    words = file.read().rstrip(b"\0").split(b"\0")
                if words[-1] == str(pid).encode() and b"supervisor.py" in b" ".join(words):
                    found.append(int(name))
    return [pid for pid in found if state_of(pid) not in ("", "Z", "X")]


# -- the warm process -----------------------------------------------------------------------------------


def nurse():
    """Fork a victim for each order, until the test is gone; then nothing that is left goes on."""
    control = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who wait for the victims
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, LONGEST, 1)
        if not data:
            os.killpg(0, signal.SIGKILL)
        os.set_inheritable(descriptors[0], False)
        with socket.socket(fileno=descriptors[0]) as sock:
            if os.fork() == 0:
                control.close()
                watch(Channel(sock), *json.loads(data))


def watch(channel, program, options):
    """Fork the victim, wait for its end and tell the test."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        live(channel, program, options)
    with contextlib.suppress(OSError):  # the test doesn't care any more
        channel.say("exit", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    os._exit(0)


def live(channel, program, options):
    """Be the victim."""
    status = 1
    try:
        channel.say("begun", os.getpid())
        PROGRAMS[program](channel, **options)
        status = 0
    except BaseException:
        channel.say("failed", traceback.format_exc())
    finally:
        os._exit(status)


# -- what victims do ------------------------------------------------------------------------------------


class Points:
    """The fail-points of a victim: kills that are armed later, places where it stops and asks, and
    the word on what is on disk. It says each seq of `session` that is there."""

    def __init__(self, channel, *, kill=None, stop=None):
        self._channel = channel
        self._kill = kill
        self._stop = stop
        self._kills = FailPoints()
        # The seq of the session's last event, and of the last one on disk, once it is open.
        self.appended = self.durable = None
        self.at = {}  # what to do at an append of this type

    def arm(self):
        """From now on hits count."""
        if self._kill is not None:
            name, nth, *where = self._kill
            self._kills.kill(name, nth=nth, **(where[0] if where else {}))

    def __call__(self, name, **info):
        self._kills(name, **info)
        if self._stop is not None and _fits(name, info, *self._stop):
            self._channel.say("stopped", name, self.appended)
            self._channel.hear()
        if name == "store.append" and self.appended is not None:
            self.appended += 1
        if name == "store.commit.after" and self.durable is not None:
            self.durable += info["events"]
            self._channel.say("durable", self.durable)
        if name == "store.append" and info["type"] in self.at:
            self.at.pop(info["type"])()


def _fits(name, info, wanted, where=None):
    return name == wanted and all(info.get(key) == value for key, value in (where or {}).items())


def append_line(path, line):
    """The side effect of these tests: one line more in a file."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, f"{line}\n".encode())
    finally:
        os.close(fd)


def make_tools(channel, *, effects=None, mark=None):
    """`note` writes a line, `ask` stops until the test tells it what to answer, `bash` is marked."""

    def note(line: str):
        """Write a line into the file."""
        append_line(effects, line)
        return f"wrote {line}"

    def ask(question: str):
        """Ask the test."""
        channel.say("asked", question)
        (answer,) = channel.hear()
        return answer

    env = None if mark is None else {**os.environ, "TOOL_MARK": mark}
    return [tool(note), tool(ask), bash_tool(env=env)]


def make_script(entries):
    """A script out of JSON: a string is text, a list is a call's name and arguments, None a silence."""

    def item(word):
        return word if isinstance(word, str) else stall() if word is None else call(*word)

    return [[item(word) for word in entry] for entry in entries]


def run_work(channel, *, path, messages, script, effects=None, mark=None, go=None, **where):
    """Send the messages and wait for their turns; say what was accepted, done and made durable.

    With `go`, a named pipe, the first output of a tool that is logged writes a line into it.
    """
    points = Points(channel, **where)
    with contextlib.ExitStack() as stack:
        if go is not None:
            pipe = os.open(go, os.O_RDWR | os.O_CLOEXEC)  # for both, so that it waits for no reader
            points.at["tool/chunk"] = lambda: os.write(pipe, b"go\n")
        store = stack.enter_context(Store(path, points=points))
        agent = stack.enter_context(
            Agent(
                ScriptedModel(make_script(script)),
                store=store,
                session="s",
                tools=make_tools(channel, effects=effects, mark=mark),
                max_parallel=1,
            )
        )
        points.appended = points.durable = agent.seq
        points.arm()
        futures = []
        for message in messages:
            futures.append(agent.send(message))
            channel.say("accepted", message)
        for future in futures:
            channel.say("ended", future.result().turn)


def run_on(channel, *, path, effects, mark):
    """Two messages at a time, each with a call that has an effect, until somebody kills it."""

    def script():
        for number in itertools.count():
            line = f"{os.getpid()}-{number}"
            yield ["Writing", " it.", call("note", {"line": line})]
            yield ["Done", "."]
            command = f"sleep 600 & setsid sleep 600 & echo {line}-too >> {effects}"
            yield [call("bash", {"command": command})]
            yield ["Done."]

    points = Points(channel)
    store = Store(path, points=points)
    tools = make_tools(channel, effects=effects, mark=mark)
    agent = Agent(ScriptedModel(script()), store=store, session="s", tools=tools)
    points.appended = points.durable = agent.seq
    while True:
        futures = []
        for name in "ab":
            message = f"{os.getpid()}-{name}-{agent.seq}"
            futures.append(agent.send(message))
            channel.say("accepted", message)
        for future in futures:
            channel.say("ended", future.result().turn)


def run_open(channel, *, path, **where):
    """Open the session, say what came of it, and hold it until told."""
    points = Points(channel, **where)
    points.arm()
    with Store(path, points=points) as store:
        channel.say("opening")
        try:
            session = store.open("s")
        except SessionLive as exc:
            channel.say("live", exc.pid, exc.host, exc.since)
            return
        channel.say("opened", 0 if session.report is None else len(session.report.events))
        channel.hear()
        session.close()


def run_race(channel, *, path):
    """Open the session whenever told to; who wins leaves an open turn in it and lets it go."""
    with Store(path) as store:
        channel.say("ready")
        while channel.hear() == ["go"]:
            try:
                session = store.open("s")
            except SessionLive as exc:
                channel.say("live", exc.pid)
                session = None
            else:
                channel.say("won", 0 if session.report is None else len(session.report.events))
            channel.hear()
            if session is not None:
                session.append(ev.TurnStart(turn=session.state.turn + 1))
                session.append(ev.StepStart(turn=session.state.turn, step=1))
                session.close()
            channel.say("left")


def run_ask(channel, *, path, url, message):
    """Open the session and ask a model server."""
    model = ChatModel("any", base_url=url)
    with Store(path) as store:
        with Agent(model, store=store, session="s", tools=make_tools(channel)) as agent:
            channel.say("ended", agent.run(message).reason)


PROGRAMS = {name[4:]: value for name, value in list(globals().items()) if name.startswith("run_")}
