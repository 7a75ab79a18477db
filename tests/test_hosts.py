"""Programs that syncagent is a guest in: a notebook's kernel, an event loop, worker threads, gevent."""

import asyncio
import contextlib
import json
import os
import queue
import subprocess
import sys
import threading

import pytest
from processes import ROOT, Mark, until
from runtime_parts import LONG, Held

from syncagent import Agent, Store
from syncagent.testing import ScriptedModel, assert_log, call, hold, stall

pytestmark = pytest.mark.concurrent


# -- a notebook ----------------------------------------------------------------------------------------

PRELUDE = """
import json, subprocess, threading
from syncagent import Agent, ChatModel, Store, bash, tool
from syncagent.testing import ModelServer, ScriptedModel, call, hold, stall

@tool
def wait() -> int:
    "Wait in a process of its own."
    print("READY", flush=True)
    return subprocess.run(["sleep", "60"]).returncode

store = Store(PATH)
"""


class Kernel:
    """A real kernel of this interpreter's, and what its cells print."""

    def __init__(self, folder, env):
        from jupyter_client.manager import KernelManager

        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel(cwd=str(folder), env=env)
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    def start(self, code):
        return self.client.execute(code, store_history=False)

    def output(self, cell, *, until=None):
        """What the cell has printed, at its end or when `until` is in it; and the error's name, if any."""
        printed, error = "", None
        while True:
            message = self.client.get_iopub_msg(timeout=60)
            if message["parent_header"].get("msg_id") != cell:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                printed += content["text"]
                if until is not None and until in printed:
                    return printed, error
            elif kind == "error":
                error = content["ename"]
            elif kind == "status" and content["execution_state"] == "idle":
                return printed, error

    def run(self, code):
        return self.output(self.start(code))

    def interrupt(self):
        self.manager.interrupt_kernel()

    def close(self):
        with contextlib.suppress(queue.Empty):
            self.client.stop_channels()
        self.manager.shutdown_kernel(now=False)
        self.manager.cleanup_resources()
        for owner in (self.client, self.manager):
            owner.context.destroy()
        _close_loop()


def _close_loop():
    """The client's library keeps an event loop for each thread that has used it."""
    from jupyter_core import utils

    loop = utils._loop.get()
    if loop is not None:
        loop.close()
        utils._loop.set(None)
        asyncio.set_event_loop(None)


@pytest.fixture
def kernel(tmp_path):
    pytest.importorskip("ipykernel")
    mark = Mark()
    folder = tmp_path / "work"
    folder.mkdir()
    env = {**mark.env, "PYTHONPATH": ROOT, "HOME": str(tmp_path)}
    kernel = Kernel(folder, env)
    try:
        assert kernel.run(PRELUDE.replace("PATH", repr(str(tmp_path / "runs.db")))) == ("", None)
        yield kernel
    finally:
        kernel.close()
    assert mark.pids() == []
    with Store(tmp_path / "runs.db") as store:
        assert_log(store)


def notebook(test):
    """Once is enough, and what the client's libraries warn of is not ours."""
    return pytest.mark.once(pytest.mark.filterwarnings("default")(test))


#: Cells that block, and the status of the agent by which another thread knows that they do.
CELLS = {
    "a stalled stream": "[['so far', hold('x'), stall()], 'again']",
    "a tool with a process of its own": "[call('wait'), 'again']",
    "a command": "[call('bash', {'command': 'sleep 60 & setsid sleep 60; :'}), 'again']",
}


@notebook
@pytest.mark.parametrize("script", CELLS.values(), ids=CELLS)
def test_an_interrupt_of_the_kernel_ends_the_turn_in_order_and_the_next_cell_works(kernel, script):
    """As from the stop button: the cell ends with KeyboardInterrupt, and with nothing left behind."""
    cell = kernel.start(f"""
agent = Agent(ScriptedModel({script}), store=store, session="s1", tools=[bash, wait])
def say():
    for event in agent.follow():
        if event.type in ("assistant/chunk", "tool/call"):
            print("BLOCKED", flush=True)
            return
watch = threading.Thread(target=say)
watch.start()
agent.run("go")
""")
    kernel.output(cell, until="BLOCKED")
    kernel.interrupt()
    printed, error = kernel.output(cell)
    assert error == "KeyboardInterrupt"
    printed, error = kernel.run("""
watch.join()
endings = [event.data["reason"]["kind"] for event in store.read("s1") if event.type == "turn/end"]
via = [event.data["via"] for event in store.read("s1") if event.type == "cancel/requested"]
threads = [thread.name for thread in threading.enumerate() if "syncagent" in thread.name]
print(json.dumps([endings, via, threads, agent.status, agent.run("again").text]))
""")
    assert error is None
    assert json.loads(printed) == [["aborted"], ["sigint"], ["syncagent-store"], "idle", "again"]
    assert kernel.run("agent.close(); store.close()") == ("", None)


@notebook
def test_an_interrupt_outside_of_a_turn_is_the_kernels_own(kernel):
    cell = kernel.start("""
agent = Agent(ScriptedModel(["one", "two"]), store=store, session="s1")
agent.run("go")
print("BLOCKED", flush=True)
threading.Event().wait()
""")
    kernel.output(cell, until="BLOCKED")
    kernel.interrupt()
    assert kernel.output(cell)[1] == "KeyboardInterrupt"
    printed, error = kernel.run("print(agent.run('again').text); agent.close(); store.close()")
    assert (printed, error) == ("two\n", None)


@notebook
def test_a_kernel_that_is_restarted_in_a_turn_finds_its_session_and_what_is_unknown(kernel, tmp_path):
    """Its supervisor and tools go with the kernel; a session that it drove is cold."""
    cell = kernel.start("""
agent = Agent(ScriptedModel([call("bash", {"command": "echo READY; sleep 60"})]), store=store, session="s1",
              tools=[bash])
def say():
    next(event for event in agent.follow() if event.type == "tool/chunk")
    print("BLOCKED", flush=True)
watch = threading.Thread(target=say)
watch.start()
agent.run("go")
""")
    kernel.output(cell, until="BLOCKED")
    kernel.manager.restart_kernel(now=True)
    kernel.client.wait_for_ready(timeout=60)
    kernel.run(PRELUDE.replace("PATH", repr(str(tmp_path / "runs.db"))))
    printed, error = kernel.run("""
with Agent(ScriptedModel(["I see."]), store=store, session="s1") as agent:
    print(agent.opened.unknown, agent.run("what happened?").text)
store.close()
""")
    assert (printed, error) == ("['call_1'] I see.\n", None)


# -- an event loop -------------------------------------------------------------------------------------


def test_a_running_event_loop_waits_for_a_turn_without_being_held_up(tmp_path):
    """A turn's future can be awaited, and other tasks go on; its own token stops the turn."""
    ticks = []

    async def main(agent, held):
        async def tick():
            while True:
                ticks.append(1)
                await asyncio.sleep(0.001)

        beside = asyncio.ensure_future(tick())
        future = asyncio.wrap_future(await asyncio.get_running_loop().run_in_executor(None, agent.send, "go"))
        await asyncio.get_running_loop().run_in_executor(None, held.wait)
        seen = len(ticks)
        while len(ticks) < seen + 5:
            await asyncio.sleep(0.001)
        agent.cancel()
        result = await asyncio.wait_for(future, LONG)
        beside.cancel()
        return result

    held = Held()
    with Store(tmp_path / "runs.db") as store:
        with Agent(ScriptedModel([call("work")]), store=store, tools=[held.tool]) as agent:
            assert asyncio.run(main(agent, held)).reason == "aborted"


# -- threads of the host -------------------------------------------------------------------------------


def test_each_worker_thread_drives_an_agent_of_its_own(tmp_path):
    results = queue.Queue()

    def work(number, store):
        model = ScriptedModel([["a", hold("x"), "b"]])
        with Agent(model, store=store, session=f"s{number}") as agent:
            future = agent.send("go")
            assert model.point("x").reached.wait(LONG)
            if number % 2:
                agent.cancel()
            model.point("x").release()
            results.put((number % 2, future.result(LONG).reason))

    with Store(tmp_path / "runs.db") as store:
        threads = [threading.Thread(target=work, args=(number, store)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(results.get() for _ in threads) == [(0, "completed")] * 8 + [(1, "aborted")] * 8
        assert_log(store)


# -- gevent --------------------------------------------------------------------------------------------

PATCHED = """
from gevent import monkey
monkey.patch_all()
import sys
from syncagent import Agent, Store
from syncagent.errors import SyncagentError
from syncagent.testing import ScriptedModel
try:
    with Store(sys.argv[1]) as store, Agent(ScriptedModel(["hello"]), store=store) as agent:
        print(agent.run("go").text)
except SyncagentError as exc:
    print(type(exc).__name__, exc)
"""


@pytest.mark.once
def test_a_process_that_gevent_has_patched_works_or_says_that_it_cannot(tmp_path):
    pytest.importorskip("gevent")
    done = subprocess.run(
        [sys.executable, "-c", PATCHED, str(tmp_path / "runs.db")],
        env={**os.environ, "PYTHONPATH": ROOT},
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0
    assert done.stdout == "hello\n" or "gevent" in done.stdout


def test_stalls_of_other_agents_hold_nobody_up(tmp_path):
    """One host, many agents: a stalled stream of one is nothing to the others."""
    with Store(tmp_path / "runs.db") as store:
        stalled = ScriptedModel([["so far", hold("x"), stall()]])
        with Agent(stalled, store=store) as one, Agent(ScriptedModel(["hello"]), store=store) as other:
            future = one.send("go")
            assert stalled.point("x").reached.wait(LONG)
            assert other.run("go").text == "hello"
            one.cancel()
            assert future.result(LONG).partial_text == "so far"
            until(lambda: one.status == "idle", "quiet")
