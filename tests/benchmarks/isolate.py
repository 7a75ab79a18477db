"""What an isolated call costs: `python -m tests.benchmarks.isolate`.

A call is timed from its start to its result: of a plain function, of an isolated one that goes by value
(of a script), of one that goes by its name (of a module, which is imported each time), and of the
command `true` for comparison. The supervisor of child processes runs already. Absolute times depend on
the machine. How fast an isolated call stops is in `cancel`.
"""

import time
from typing import Any, Dict, List

from syncagent import CallContext, CancellationToken, bash, tool
from syncagent.boundary.process import Processes, shared
from tests.benchmarks._frame import Figure, options, percentile, report


def nothing() -> str:
    return "done"


@tool(isolate=True)
def of_a_module() -> str:
    """Do nothing."""
    return "done"


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


def main() -> None:
    import tests.benchmarks.isolate as module  # this is __main__: its functions go by value

    given = options(__doc__ or "")
    rounds = 10 if given.quick else 100
    figures: List[Figure] = []
    with shared() as processes:
        timed(processes, bash, {"command": "true"}, 1)
        calls: Dict[str, Any] = {
            "a plain function": tool(nothing),
            "an isolated function of a script": tool(isolate=True)(nothing),
            "an isolated function of a module": module.of_a_module,
            "the command `true`": bash,
        }
        for name, it in calls.items():
            values = {"command": "true"} if it is bash else {}
            took = timed(processes, it, values, rounds)
            row = {"p50": percentile(took, 0.5), "p99": percentile(took, 0.99), "max": max(took)}
            figures.append(Figure(name=name, values=row))
    report(figures, given, note=f"milliseconds; {rounds} rounds each")


if __name__ == "__main__":
    main()
