"""Turns with stops at random moments, from random threads: `python -m tests.benchmarks.soak`.

10,000 turns (`--quick`: 300) of several agents on one store: streams, commands, plain functions, hooks
and back-offs, each stopped at a random moment, or not at all. Afterwards every future is settled,
every log valid, no thread, descriptor or process is left, and the memory of the last half is flat.
"""

import collections
import contextlib
import os
import random
import tempfile
import threading
import time
from concurrent.futures import CancelledError
from typing import Any, Counter, List

from syncagent import Agent, CancellationToken, ChatModel, Store, bash, tool
from syncagent.testing import ModelServer, assert_log, call, status
from tests.benchmarks._frame import Figure, Left, Target, options, percentile, report

AGENTS = 4
SCRIPTS = (
    ["Once ", "upon ", "a ", "time"],
    [call("bash", {"command": "sleep 0.01 & echo one; sleep 0.02; echo two"})],
    [call("wait"), call("plain")],
    [call("plain"), call("bash", {"command": "echo hello"})],
    status(429, headers={"Retry-After": "0.02"}),
)


@tool
def wait(*, token: CancellationToken) -> str:
    """Wait for a moment."""
    token.wait(0.02)
    token.raise_if_cancelled()
    return "waited"


@tool
def plain() -> str:
    """Work for a moment and look at nothing."""
    time.sleep(0.002)  # a body that doesn't hear a stop
    return "worked"


def entries(rng: random.Random) -> Any:
    while True:
        yield rng.choice(SCRIPTS)


def memory() -> int:
    """The resident memory in KiB."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


class Soak:
    """One agent after the other, driven by its own thread, stopped by any."""

    def __init__(self, store: Store, server: ModelServer, turns: int) -> None:
        self.store = store
        self.server = server
        self.left = turns
        self.lock = threading.Lock()
        self.reasons: Counter[str] = collections.Counter()
        self.took: List[float] = []
        self.sizes: List[int] = []
        self.errors: List[BaseException] = []

    def take(self) -> bool:
        with self.lock:
            self.left -= 1
            if self.left % 50 == 0:
                self.sizes.append(memory())
                self.server.requests.clear()  # what it got is no memory of ours
            return self.left >= 0

    def drive(self, seed: int) -> None:
        rng = random.Random(seed)
        try:
            with ChatModel("any", base_url=self.server.url) as model:
                while self.left > 0:
                    with Agent(model, store=self.store, tools=[bash, wait, plain], max_steps=6) as agent:
                        for _ in range(25):
                            if self.take():
                                self.turn(agent, rng)
        except BaseException as exc:
            self.errors.append(exc)

    def turn(self, agent: Agent, rng: random.Random) -> None:
        future = agent.send("go")
        moment = rng.choice([None, 0.0, rng.uniform(0, 0.005), rng.uniform(0, 0.05)])
        stopped: List[float] = []
        if moment is not None:

            def stop() -> None:
                stopped.append(time.perf_counter())
                agent.cancel()

            timer = threading.Timer(moment, stop)
            timer.start()
            timer.join(0 if rng.random() < 0.5 else None)
        result = None
        with contextlib.suppress(CancelledError):  # the stop came before a turn took the message
            result = future.result(120)
        if moment is not None:
            timer.join()
        with self.lock:
            self.reasons[result.reason if result is not None else "dropped"] += 1
            if stopped and result is not None and result.reason == "aborted":
                self.took.append((time.perf_counter() - stopped[0]) * 1000)


def main() -> None:
    given = options(__doc__ or "")
    turns = 300 if given.quick else 10_000
    before = Left.now()
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/runs.db"
        with ModelServer(entries(random.Random(1))) as server, Store(path) as store:
            soak = Soak(store, server, turns)
            threads = [threading.Thread(target=soak.drive, args=(seed,)) for seed in range(AGENTS)]
            begun = time.perf_counter()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            seconds = time.perf_counter() - begun
        with Store(path) as store:
            assert_log(store)
    after = Left.now()
    if soak.errors:
        raise soak.errors[0]
    half = soak.sizes[len(soak.sizes) // 2 :]
    third = max(1, len(half) // 3)
    growth = sum(half[-third:]) / third - sum(half[:third]) / third
    figure = Figure(
        name="soak",
        values={
            "turns": sum(soak.reasons.values()),
            **dict(soak.reasons),
            "turns/s": turns / seconds,
            "stop p50 ms": percentile(soak.took, 0.5),
            "stop max ms": max(soak.took),
            "growth KiB": growth,
            "threads": after.threads - before.threads,
            "fds": after.descriptors - before.descriptors,
            "children": after.children - before.children,
        },
        targets=[Target("turns", turns, least=True)]
        + [Target(column, 0) for column in ("threads", "fds", "children")]
        + ([] if given.quick else [Target("growth KiB", 1024)]),
    )
    report([figure], given)


if __name__ == "__main__":
    main()
