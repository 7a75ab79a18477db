"""The three incidents of the demo, each played for real and judged by what its log holds."""

import os
import re
import signal
import subprocess
import sys
import time
from typing import Any, Callable, List, Sequence

from syncagent.boundary.models.chat import ChatModel
from syncagent.boundary.tools.bash import bash
from syncagent.errors import SessionExists, SyncagentError
from syncagent.log import Event, check, derive_messages
from syncagent.log import events as ev
from syncagent.runtime.store import Store
from syncagent.surface.demo.narrate import narrate
from syncagent.surface.interrupt import Agent
from syncagent.testing import ModelServer, call, hold, stall, usage
from syncagent.testing.script import Entry

__all__ = ["Demo", "DemoFailed"]

PATIENCE = 30.0  # seconds that one stage may take before the demo gives up

SESSIONS = ("demo-stop", "demo-crash")

#: A process tree: one plain child, and one that leaves its session, as daemons do.
TREE = "sleep 300 & echo worker $!; setsid sleep 300 & echo daemon $!; wait"
PAY = "echo 'invoice 17' >> {ledger}; echo paid"
MAIL = "echo 'mail 1 of 3 sent'; sleep 300 & echo worker $!; wait"


class DemoFailed(SyncagentError):
    """What the demo promises to show did not happen; the text says what."""


class Demo:
    """Plays the incidents into the database at `path`, in sessions named demo-stop and demo-crash.

    `folder` takes the small files that the demo's tools write; `say(line)` gets what happens.
    """

    def __init__(self, path: str, *, folder: str, say: Callable[[str], None]) -> None:
        self.path = path
        self.say = say
        self.ledger = os.path.join(folder, "ledger.txt")

    def play(self) -> None:
        """Play all three.

        Raises `SessionExists` when the file holds such a session, and `DemoFailed` when something
        is not as it should be.
        """
        with Store(self.path) as store:
            taken = [info.id for info in store.sessions() if info.id in SESSIONS]
            if taken:
                raise SessionExists(taken[0], self.path)
            self.stop(store)
            lost = self.crash(store)
            self.contrast(lost)
            self._verify(store)

    # -- 1: the stop ------------------------------------------------------------------------------

    def stop(self, store: Store) -> None:
        """Stop a turn while a tool runs, and another in the middle of a stream."""
        self._title("1. The stop", "A tool runs a tree of processes; then a model stalls in mid-sentence.")
        script: List[Entry] = [
            ["I will build it.", call("bash", {"command": TREE}), usage(40, 12)],
            ["The build was stopped, and ", hold("stalled"), stall()],
            ["You stopped the build, and then me. Nothing is running.", usage(90, 14)],
        ]
        with ModelServer(script) as server, _model(server) as model:
            with Agent(model, store=store, session="demo-stop", tools=[bash]) as agent:
                pids = self._stop_in_tool(agent)
                self._stop_in_stream(agent, server)
                self._then(agent, "What happened?")
        self._expect(not _alive(pids), f"processes are left: {_alive(pids)}")

    def _stop_in_tool(self, agent: Agent) -> List[int]:
        since = agent.seq
        future = agent.send("Build the project.")
        seen: List[str] = []

        def two_processes(event: Event) -> bool:
            if isinstance(event.body, ev.ToolChunk):
                seen.append(event.body.text)
            return len(_pids(seen)) == 2

        since = narrate(agent.follow(since), self.say, until=two_processes)
        pids = _pids(seen)
        self.say(f"   > agent.cancel(): the tool's processes {pids} are running")
        took = self._cancel(agent, future)
        narrate(agent.follow(since), self.say, until=_turn_ended)
        self._expect(not _alive(pids), f"processes are left: {_alive(pids)}")
        self.say(f"   The turn was closed {took:.1f} ms after cancel(). Of its processes, 0 are left.")
        return pids

    def _stop_in_stream(self, agent: Agent, server: ModelServer) -> None:
        since = agent.seq
        future = agent.send("How did it go?")
        point = server.point("stalled")
        self._expect(point.reached.wait(PATIENCE), "the model did not begin to stream")
        point.release()
        since = narrate(agent.follow(since), self.say, until=lambda e: isinstance(e.body, ev.AssistantChunk))
        self.say("   > agent.cancel(): the stream is silent, its socket open")
        took = self._cancel(agent, future)
        narrate(agent.follow(since), self.say, until=_turn_ended)
        gone = server.requests[-1].gone.wait(PATIENCE)
        self._expect(gone, "the connection is still open")
        self.say(f"   The turn was closed {took:.1f} ms after cancel(). Its connection is gone.")

    def _cancel(self, agent: Agent, future: Any) -> float:
        """Cancel and wait for the turn's end on disk; the milliseconds that took."""
        begun = time.perf_counter()
        agent.cancel()
        result = future.result(PATIENCE)
        took = (time.perf_counter() - begun) * 1000
        self._expect(result.reason == "aborted", f"the turn ended as {result.reason}")
        return took

    # -- 2: kill -9 -------------------------------------------------------------------------------

    def crash(self, store: Store) -> List[Event]:
        """Kill a runtime in mid-turn, open its session again and go on; the log as the kill left it."""
        self._title("2. kill -9", "Another process runs a turn: one call done, one running, one to come.")
        script: List[Entry] = [
            ["Hello. What can I do?", usage(10, 6)],
            [
                "First the invoice.",
                call("bash", {"command": PAY.format(ledger=_quoted(self.ledger))}),
                call("bash", {"command": MAIL}),
                call("bash", {"command": "echo cleaned"}),
                usage(60, 30),
            ],
            [
                "The invoice is paid. Mail 1 was sent; I don't know about 2 and 3 and will ask before"
                " I send them again. The clean-up never started.",
                usage(180, 33),
            ],
        ]
        with ModelServer(script) as server, _model(server) as model:
            pids = self._kill_runtime(store, server)
            before = list(store.read("demo-crash"))
            narrate(before, self.say)
            self.say("   > kill -9: nobody wrote an ending. Opened again, repair adds what is marked *:")
            with Agent(model, store=store, session="demo-crash", tools=[bash]) as agent:
                narrate(agent.follow(len(before)), self.say, until=_turn_ended)
                self._report(agent, pids)
                self._then(agent, "Go on.")
        with open(self.ledger, encoding="utf-8") as ledger:
            lines = ledger.read().splitlines()
        self._expect(len(lines) == 1, f"the invoice was paid {len(lines)} times")
        self.say("   The invoice was paid once.")
        return before

    def _kill_runtime(self, store: Store, server: ModelServer) -> List[int]:
        command = [sys.executable, "-m", "syncagent.surface.demo.victim", self.path, "demo-crash", server.url]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL) as victim:
            try:
                pids = self._wait_for_worker(store, victim)
            finally:
                victim.send_signal(signal.SIGKILL)
        self._expect(_gone(pids), f"processes outlived the runtime: {_alive(pids)}")
        return pids

    def _wait_for_worker(self, store: Store, victim: "subprocess.Popen[bytes]") -> List[int]:
        """Look into the log of the other process until its second call shows a running worker."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and victim.poll() is None:
            try:
                chunks = [e.body.text for e in store.read("demo-crash") if isinstance(e.body, ev.ToolChunk)]
            except SyncagentError:  # the other process has not made the session yet
                chunks = []
            if _pids(chunks):
                return _pids(chunks)
            time.sleep(0.02)
        raise DemoFailed("the process that was to be killed did not get to its second call")

    def _report(self, agent: Agent, pids: Sequence[int]) -> None:
        report = agent.opened
        if report is None:
            raise DemoFailed("there was nothing to repair")
        self.say(
            f"   Repaired: {len(report.unknown)} call with an unknown outcome,"
            f" {len(report.not_started)} that never started. Of the tool's processes, 0 outlived the kill."
        )

    # -- 3: the contrast --------------------------------------------------------------------------

    def contrast(self, before: Sequence[Event]) -> None:
        """Count what a recovery that cuts the log back to its last whole turn would have thrown away."""
        self._title("3. The contrast", "A recovery that truncates cuts the same log to its last whole turn.")
        ends = [event.seq for event in before if _turn_ended(event)]
        keep = ends[-1] if ends else 0
        lost = [event for event in before if event.seq > keep]
        size = sum(len(event.text.encode("utf-8")) for event in lost)
        kept, whole = derive_messages(before[:keep]), derive_messages(before)
        results = [event for event in lost if isinstance(event.body, ev.ToolResult)]
        self.say(f"   - {len(lost)} of {len(before)} events and {size} bytes would be gone:")
        narrate(lost, lambda line: self.say("   -" + line[4:]))
        self.say(
            f"   The model would see {len(kept)} messages instead of {len(whole)} and the placeholders:"
            f" not the request, not its {len(results)} result. Asked again, it would pay again."
        )

    # -- what all have in common ------------------------------------------------------------------

    def _then(self, agent: Agent, text: str) -> None:
        """Run one more turn: its request holds all that happened, and a strict server accepts it."""
        since = agent.seq
        result = agent.run(text)
        narrate(agent.follow(since), self.say, until=_turn_ended)
        self._expect(result.reason == "completed", f"the next turn ended as {result.reason}: {result.error}")
        self.say(f"   The model goes on: “{result.text}”")

    def _verify(self, store: Store) -> None:
        self.say("")
        for id in SESSIONS:
            state = check(store.read(id))
            self._expect(state.phase == "idle", f"{id} is not balanced")
            self.say(f"{id}: {state.seq} events, {state.turn} turns, every rule holds")

    def _title(self, name: str, text: str) -> None:
        self.say("")
        self.say(name)
        self.say(f"   {text}")

    def _expect(self, condition: object, text: str) -> None:
        if not condition:
            raise DemoFailed(text)


class _model:
    """A `ChatModel` at the scripted server, closed at the end of the block."""

    def __init__(self, server: ModelServer) -> None:
        self._model = ChatModel("scripted", base_url=server.url, api_key="none")

    def __enter__(self) -> ChatModel:
        return self._model

    def __exit__(self, *exc: Any) -> None:
        self._model.close()


def _turn_ended(event: Event) -> bool:
    return isinstance(event.body, ev.TurnEnd)


def _pids(texts: Sequence[str]) -> List[int]:
    return [int(number) for number in re.findall(r"(?:worker|daemon) (\d+)\n", "".join(texts))]


def _alive(pids: Sequence[int]) -> List[int]:
    found = []
    for pid in pids:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            continue
        except PermissionError:  # somebody else's process has the number now
            continue
        found.append(pid)
    return found


def _gone(pids: Sequence[int]) -> bool:
    """Whether they end within a few seconds of their runtime's death."""
    end = time.monotonic() + 5
    while _alive(pids) and time.monotonic() < end:
        time.sleep(0.01)
    return not _alive(pids)


def _quoted(path: str) -> str:
    return "'" + path.replace("'", "'\\''") + "'"
