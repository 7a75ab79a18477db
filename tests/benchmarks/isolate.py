"""What an isolated tool costs, and how fast it stops: `python -m tests.benchmarks.isolate [ROUNDS]`.

From a checkout. The supervisor of child processes runs already. A call is timed from its start to its
result: of a plain function, of an isolated one that goes by value (of a script), of one that goes by
its name (of a module, which is imported each time), and of the command `true` for comparison. A stop
is timed from `cancel()` until the call has ended and its process is reaped, in a function that loops
and never looks. Absolute times depend on the machine.
"""

import statistics
import sys
import time
from typing import Any, Callable, Dict, List

from syncagent import CallContext, CancellationToken, Cancelled, bash, tool
from syncagent.boundary.process import Processes, shared


def nothing() -> str:
    return "done"


@tool(isolate=True)
def of_a_module() -> str:
    """Do nothing."""
    return "done"


def spin() -> None:
    print("looping", flush=True)
    while True:
        pass


def timed(processes: Processes, it: Any, values: Dict[str, Any], rounds: int) -> List[float]:
    """The milliseconds of each call, from its start to its result."""
    took: List[float] = []
    for _ in range(rounds):
        with CancellationToken() as token:
            context = CallContext(token=token, emit=lambda text: True, processes=processes)
            begun = time.perf_counter()
            it.invoke(values, context)
            took.append((time.perf_counter() - begun) * 1000)
    return took


def stops(processes: Processes, it: Any, values: Dict[str, Any], rounds: int) -> List[float]:
    """The milliseconds of each stop, from `cancel()` to the end of the call."""
    took: List[float] = []
    for _ in range(rounds):
        with CancellationToken() as token:
            begun: List[float] = []

            def cancel(text: str) -> bool:
                if not begun:
                    begun.append(time.perf_counter())
                    token.cancel()
                return True

            try:
                it.invoke(values, CallContext(token=token, emit=cancel, processes=processes))
            except Cancelled:
                pass
            took.append((time.perf_counter() - begun[0]) * 1000)
    return took


def main() -> None:
    import tests.benchmarks.isolate as module  # this is __main__: its functions go by value

    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    measure: Callable[..., List[float]]
    with shared() as processes:
        timed(processes, bash, {"command": "true"}, 1)
        print(f"{rounds} rounds each")
        print(f"{'':<34} {'p50 ms':>8} {'p99 ms':>8}")
        for name, measure, it, values in (
            ("call of a plain function", timed, tool(nothing), {}),
            ("call, isolated, of a script", timed, tool(isolate=True)(nothing), {}),
            ("call, isolated, of a module", timed, module.of_a_module, {}),
            ("the command `true`", timed, bash, {"command": "true"}),
            ("stop of an isolated endless loop", stops, tool(isolate=True)(spin), {}),
            ("stop of a command that sleeps", stops, bash, {"command": "echo go; exec sleep 600"}),
        ):
            took = sorted(measure(processes, it, values, rounds))
            print(f"{name:<34} {statistics.median(took):8.2f} {took[int(len(took) * 0.99) - 1]:8.2f}")


if __name__ == "__main__":
    main()
