"""Streamed chunks per second, logged and durable: `python -m tests.benchmarks.stream`.

A turn whose answer has 5,000 chunks, from `run` to its ending on disk, beside a loop that only reads
and parses the same answer from the same server (`_reference.stream`), in turns in one run. The ratio
is what to compare: 1 would be the speed of that loop.
"""

import statistics
import tempfile
import time
from typing import Callable, List

import requests

from syncagent import Agent, ChatModel, Store
from tests.benchmarks import _reference
from tests.benchmarks._frame import Figure, Target, options, report
from tests.benchmarks._server import serving

CHUNKS = 5000


def timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def first_chunk(agent: Agent) -> float:
    """Seconds from `send` to the first chunk in the log."""
    since, begun = agent.seq, time.perf_counter()
    future = agent.send("go")
    next(event for event in agent.follow(since) if event.type == "assistant/chunk")
    took = time.perf_counter() - begun
    future.result(60)
    return took


def main() -> None:
    given = options(__doc__ or "")
    rounds = 5 if given.quick else 20
    name = f"stream:{CHUNKS}"
    bare: List[float] = []
    ours: List[float] = []
    with serving() as url, tempfile.TemporaryDirectory() as folder, requests.Session() as session:
        with Store(f"{folder}/runs.db") as store, ChatModel(name, base_url=url) as model:
            for _ in range(rounds + 1):  # the first one warms up
                bare.append(timed(lambda: _reference.stream(session, url, name)))
                with Agent(model, store=store) as agent:
                    ours.append(timed(lambda: agent.run("go").raise_for_reason()))
            with ChatModel("answer", base_url=url) as short, Agent(short, store=store) as agent:
                first = [first_chunk(agent) for _ in range(rounds)]
    ratio = statistics.median(a / b for a, b in zip(bare[1:], ours[1:]))
    figure = Figure(
        name="a streamed answer",
        values={
            "chunks/s": round(CHUNKS / statistics.median(ours[1:])),
            "bare chunks/s": round(CHUNKS / statistics.median(bare[1:])),
            "ratio": ratio,
            "first chunk ms": statistics.median(first) * 1000,
        },
        targets=[Target("ratio", 0.35, least=True)],
    )
    report([figure], given)


if __name__ == "__main__":
    main()
