"""What tests of the store run in processes of their own, to be killed or to compete.

`start("append", path, ...)` starts one; each prints lines and reads a line where it waits. `fork` starts
one without a start of an interpreter, for tests that need many and have no thread of their own.
"""

import json
import os
import random
import signal
import subprocess
import sys

from log_writer import Log, calls
from syncagent.boundary.store.faults import Patience
from syncagent.boundary.store.files import Gate
from syncagent.boundary.store.sqlite import SQLiteStore
from syncagent.errors import SessionExists, SessionLive, StoreError
from syncagent.log import Event, LogState, advance

HERE = os.path.dirname(os.path.abspath(__file__))


def start(name, *args, **options):
    """Start a child; close its standard input to let it end, or kill it."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), HERE])}
    return subprocess.Popen(
        [sys.executable, "-c", "import store_child; store_child.main()", name, *map(str, args)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        **options,
    )


class Forked:
    """A forked child: its pid, and its standard output as lines."""

    def __init__(self, name, args):
        reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.dup2(writing, 1)
                globals()["run_" + name](*map(str, args))
            finally:
                os._exit(1)
        os.close(writing)
        self.stdout = open(reading)

    def kill(self):
        """Kill it as `kill -9` does; once, and before `wait`."""
        os.kill(self.pid, signal.SIGKILL)

    def wait(self):
        """Wait for its end; return the exit code, negative for a signal."""
        self.stdout.close()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def fork(name, *args):
    return Forked(name, args)


def finish(child):
    """Let a child end; return its exit code."""
    with child:
        if child.stdin and not child.stdin.closed:
            child.stdin.close()
        return child.wait(60)


def kill(child):
    child.send_signal(signal.SIGKILL)
    with child:
        child.wait(60)


def some_turn(rng):
    """A whole turn of a few chunks and calls."""
    log = Log().asking()
    for _ in range(rng.randrange(10)):
        log.chunk("x" * rng.randrange(30))
    ids = [f"c{n}" for n in range(rng.randrange(3))]
    log.says("Let me look.", *calls(*ids))
    for id in ids:
        log.call(id).result(id, said="y" * rng.choice([1, 50, 9000]))
    return log.end_step().end_turn().events


def ignore(error):
    """An on_failure for those who look at what flush raises."""


def shifted(events, seq, turn, time):
    """The events as they would follow on others: seq, turn numbers, message ids and times moved on."""
    moved = []
    for event in events:
        data = json.loads(json.dumps(event.data).replace('"u-', f'"u-{seq}-'))
        if "turn" in data:
            data["turn"] += turn
        item = {"seq": event.seq + seq, "time": max(event.time, time), "type": event.type, "data": data}
        moved.append(Event.from_dict(item))
    return moved


def put_all(store, opened, events, *, flush=True):
    """Append events one by one, as a runtime does, with the state's dump where it is idle."""
    for event in events:
        advance(opened.state, event)
        kept = opened.state.kept() if opened.state.phase == "idle" else None
        store.append(opened.lease, [event], state=kept)
    if flush:
        store.flush(opened.lease)


def main():
    # A child never outlives the test, whatever becomes of its parent.
    getattr(sys.modules[__name__], "run_" + sys.argv[1])(*sys.argv[2:])


def say(*words):
    # In one piece, so that a kill can't leave half a line.
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def open_or_create(store, session):
    try:
        return store.create(session, on_failure=ignore)
    except SessionExists:
        return store.open(session, on_failure=ignore)


def run_append(path, session, seed, rounds="1000000"):
    """Append random turns for ever; say each seq that a flush has acknowledged."""
    rng = random.Random(int(seed))
    store = SQLiteStore(path)
    opened = open_or_create(store, session)
    say("opened", opened.state.seq)
    for _ in range(int(rounds)):
        state = opened.state
        turn = state.turn
        for event in shifted(some_turn(rng), state.seq, turn, state.time):
            put_all(store, opened, [event], flush=rng.random() < 0.3)
            if store.durable_seq(opened.lease) >= event.seq:
                say("durable", event.seq)
    store.flush(opened.lease)
    store.close()
    say("done", opened.state.seq)


def run_hold(path, session):
    """Open or create a session, say so, leave a turn open, and hold it until the input ends."""
    with SQLiteStore(path) as store:
        opened = open_or_create(store, session)
        put_all(store, opened, Log().asking().chunk("Hel").events)
        say("held", os.getpid())
        sys.stdin.read()


def run_race(path, session):
    """For each line of the input, open the session; say who won; on the next line give it back."""
    with SQLiteStore(path) as store:
        say("ready")
        for _ in sys.stdin:
            try:
                opened = store.open(session, on_failure=ignore)
            except SessionLive as exc:
                say("live", exc.pid, exc.host)
                opened = None
            else:
                say("won", len(opened.closers))
            sys.stdin.readline()
            if opened is not None:
                store.release(opened.lease)
            say("let go")


def run_interleave(path, session, count):
    """Append `count` events to a session of its own, each one flushed; say how many errors came."""
    errors = 0
    with SQLiteStore(path) as store:
        opened = store.create(session, on_failure=ignore)
        log = Log()
        for index in range(int(count)):
            log.put(f"m-{index}")
            try:
                put_all(store, opened, [Event.from_dict(log.dicts[-1])])
            except StoreError as exc:
                errors += 1
                say("error", exc)
    say("errors", errors)


def run_read(path):
    """Read all sessions until the input ends; say how many errors came."""
    import select

    errors = reads = 0
    store = SQLiteStore(path)
    while not select.select([sys.stdin], [], [], 0)[0]:
        for info in store.sessions():
            try:
                state = LogState()
                for event in store.read(info.id):
                    advance(state, event)
                reads += 1
            except Exception as exc:
                errors += 1
                say("error", repr(exc))
    say("errors", errors, reads)


def run_as_nobody(path, session):
    """As a user who may write nothing: read everything, then try to write."""
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    store = SQLiteStore(path)
    say("read", len(list(store.read(session))), len(store.inspect(session).events), len(store.sessions()))
    for what, name in ((store.open, session), (store.create, "another")):
        try:
            what(name, on_failure=ignore)
        except StoreError as exc:
            say(type(exc).__name__, exc)
    store.close()


def run_gate(path):
    """Enter a gate and stay inside until the input ends."""
    gate = Gate(path)
    gate.enter(Patience(60, path=path))
    say("inside")
    sys.stdin.read()


def run_fork(path, session):
    """Hold a session and fork a child that goes on when this process is killed."""
    store = SQLiteStore(path)
    store.create(session, on_failure=ignore)
    pid = os.fork()
    if pid == 0:
        signal.pause()
    say("forked", pid)
    sys.stdin.read()


def run_fork_often(path):
    """Append all the time and fork children that end as programs do; say how many ended well."""
    import threading

    store = SQLiteStore(path)
    opened = store.create("s", on_failure=ignore)
    stop = threading.Event()

    def feed():
        rng = random.Random(5)
        while not stop.is_set():
            state = opened.state
            put_all(store, opened, shifted(some_turn(rng), state.seq, state.turn, state.time))

    feeder = threading.Thread(target=feed)
    feeder.start()
    ended = 0
    for _ in range(10):
        pid = os.fork()
        if pid == 0:
            return  # and out through the interpreter's end
        ended += os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    stop.set()
    feeder.join()
    store.close()
    say("children", ended)
