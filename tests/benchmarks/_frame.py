"""What the benchmarks have in common: their options, figures with targets, and how both are printed.

`--quick` takes less than a minute. `--check` exits with 1 and names each target that is missed.
`--json` prints one object instead of the table.
"""

import argparse
import json
import os
import sys
import threading
from typing import Any, Callable, Dict, List, Optional, Sequence

import attrs

__all__ = ["Figure", "Left", "Target", "options", "percentile", "report"]

#: Where the servers and processes of the tests are found, under the names that the tests use.
sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


@attrs.frozen(kw_only=True)
class Figure:
    """One row: a name, its values by column, and the targets that `--check` judges."""

    name: str
    values: Dict[str, Any]
    targets: Sequence["Target"] = ()


@attrs.frozen
class Target:
    """`column` must be at most (or, with `least`, at least) `limit`."""

    column: str
    limit: float
    least: bool = False

    def missed(self, values: Dict[str, Any]) -> bool:
        value = values[self.column]
        return bool(value < self.limit if self.least else value > self.limit)


@attrs.frozen
class Left:
    """How many threads, descriptors and child processes this process has."""

    threads: int
    descriptors: int
    children: int

    @classmethod
    def now(cls) -> "Left":
        children = 0
        for task in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{task}/children") as file:
                children += len(file.read().split())
        return cls(threading.active_count(), len(os.listdir("/proc/self/fd")), children)


def options(description: str) -> argparse.Namespace:
    """The options of a benchmark."""
    parser = argparse.ArgumentParser(description=description.strip().split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="less than a minute")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest of the values that so large a share of them doesn't exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-int(len(ordered) * share * 1000) // 1000) - 1))]


def report(figures: List[Figure], given: argparse.Namespace, *, note: Optional[str] = None) -> None:
    """Print the figures; with `--check` end the process with 1 if a target is missed."""
    if given.json:
        print(json.dumps({figure.name: figure.values for figure in figures}, indent=1))
    else:
        _print_table(figures)
        if note:
            print(note)
    missed = [
        f"{figure.name}: {target.column} is {_shown(figure.values[target.column])},"
        f" the target is {'at least' if target.least else 'at most'} {target.limit:g}"
        for figure in figures
        for target in figure.targets
        if target.missed(figure.values)
    ]
    if given.check:
        for line in missed:
            print(f"missed: {line}", file=sys.stderr)
        sys.exit(1 if missed else 0)


def _print_table(figures: List[Figure]) -> None:
    columns: List[str] = []
    for figure in figures:
        columns += [name for name in figure.values if name not in columns]
    rows = [["", *columns]]
    for figure in figures:
        rows.append([figure.name, *(_shown(figure.values.get(name, "")) for name in columns)])
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    pads: List[Callable[[str, int], str]] = [str.ljust] + [str.rjust] * len(columns)
    for row in rows:
        print("  ".join(pad(cell, width) for pad, cell, width in zip(pads, row, widths)).rstrip())


def _shown(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)
