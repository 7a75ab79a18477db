"""Logs for tests: random valid ones with every type of event, and what else tests of logs need.

`random_log` writes with a `random.Random(seed)`, `valid_logs()` is a strategy of hypothesis; logs by
hand are written with `Log` (see `log_writer`).
"""

import json
import random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from log_writer import Log, calls, reasoning, text, words

__all__ = [
    "Log",
    "calls",
    "examples",
    "lines",
    "prefixes",
    "random_log",
    "reasoning",
    "text",
    "valid_logs",
    "words",
]

TEXTS = (
    "ok", "Hello", " ", "\n", "", "a b", "naïve 日本 🙂", "\x00\x1b[2J", "\u202etxet", "{}", "\u00a0", "x" * 300
)


def prefixes(events):
    """Every beginning of a list, from none of it to all of it."""
    return [events[:n] for n in range(len(events) + 1)]


class _Killed(Exception):
    pass


class _Author:
    """Writes one valid log at random. It keeps its own books, so that it can't share the code's mistakes."""

    def __init__(self, rng, *, noise, kills):
        self.rng = rng
        self.log = Log()
        self.noise_rate = noise
        self.kill_rate = kills
        self.pending = {"next_step": [], "next_turn": []}
        self.claimed = []  # of the open turn, not entered yet
        self.lost = []  # could be put back
        self.closed_to_kills = True
        self.count = 0

    def chance(self, rate):
        return self.rng.random() < rate

    def some_text(self):
        return self.rng.choice(TEXTS)

    def new_id(self):
        self.count += 1
        return f"m-{self.count}"

    # -- between the events of a turn

    def tick(self):
        """What may happen anywhere: inbox traffic, notes of children, a kill."""
        while self.chance(self.noise_rate):
            self.rng.choice([self.put, self.put, self.drop, self.replace, self.requeue, self.note])()
        if not self.closed_to_kills and self.chance(self.kill_rate):
            raise _Killed

    def put(self, id=None):
        id = self.new_id() if id is None else id
        target = self.rng.choice(["next_turn", "next_turn", "next_step"])
        self.log.put(id, self.some_text(), target, wake=self.chance(0.7))
        self.pending[target].append(id)

    def take(self, ids):
        for queue in self.pending.values():
            queue[:] = [id for id in queue if id not in ids]

    def drop(self):
        ids = [id for target in ("next_step", "next_turn") for id in self.pending[target] if self.chance(0.7)]
        if self.chance(0.5):
            self.log.cancel(cause=self.rng.choice(["user", "timeout", "hook"]), text="because")
        if ids:
            self.log.canceled(*ids)
            self.take(ids)
            self.lost += ids

    def replace(self):
        ids = [id for queue in self.pending.values() for id in queue]
        if ids:
            id = self.rng.choice(ids)
            self.log.replaced(id)
            self.take([id])
            self.put()

    def requeue(self):
        if self.lost:
            self.put(self.lost.pop(self.rng.randrange(len(self.lost))))

    def note(self):
        kind = self.rng.choice(["unknown", "started", "ended", "cancel", "settled"])
        if kind == "unknown":
            self.log.unknown(odd={"deep": [1, None, {"x": 1.5}]})
        elif kind == "cancel":
            self.log.cancel()
        elif kind == "settled":
            if not self.closed_to_kills:
                self.log.settled(boundaries=[{"boundary": "tool bash", "ms": 0.25, "call_id": "c1"}])
        elif kind == "started":
            self.log.child("started", mode=self.rng.choice(["sync", "background", "fork"]))
        else:
            self.log.child("ended", reason={"kind": self.rng.choice(["completed", "aborted", "error"])})

    # -- a turn

    def turn(self):
        self.tick()
        self.closed_to_kills = False
        self.log.turn()
        try:
            self.log.end_turn(self.course())
        except _Killed:
            if self.chance(0.2):
                self.log.gap()
            self.log.repair()
            self.log.time = self.log.dicts[-1]["time"]
            self.refill()
        else:
            self.lost += self.claimed
        self.claimed = []
        self.closed_to_kills = True
        self.tick()

    def refill(self):
        """After a repair the claims that did not enter are at the heads of their lists."""
        puts = [item["data"] for item in self.log.dicts if item["type"] == "inbox/put"]
        targets = {put["message"]["id"]: put["target"] for put in puts}
        for id in reversed(self.claimed):
            self.pending[targets[id]].insert(0, id)

    def course(self):
        """The events of a turn; return how it ends."""
        self.tick()
        self.claim(first=True)
        self.tick()
        ending = self.rng.choice(["aborted", "blocked", "error"]) if self.chance(0.15) else None
        for _ in range(self.rng.randrange(1, 4)):
            if ending is not None:
                break
            ending = self.step()
            self.tick()
            if ending is None and self.chance(0.5):
                self.claim()
        return ending or "completed"

    def claim(self, first=False):
        ids = list(self.pending["next_step"])
        if first:
            ids += self.pending["next_turn"][:1]
        if ids:
            self.log.taken(*ids)
            self.take(ids)
            self.claimed += ids

    def step(self):
        log = self.log
        log.step()
        self.tick()
        if self.chance(0.3):
            self.claim()
            self.tick()
        while self.claimed and self.chance(0.95):
            log.user(self.claimed.pop(0))
            self.tick()
        ending = self.ask()
        self.tick()
        log.end_step()
        return ending

    def ask(self):
        """The step's request; the turn's ending, or None if it goes on."""
        log = self.log
        for _ in range(3):
            if self.chance(0.5):
                log.header(model=self.rng.choice(["m-1", "m-2"]))
            shown = self.stream()
            ending = self.rng.choice(["said", "said", "said", "said", "retried", "failed", "cut", "limit"])
            if ending == "retried":
                self.tick()
                log.retry()
                continue
            if ending == "failed" or (ending in ("cut", "limit") and not shown):
                return "error" if ending == "failed" else "aborted"
            if ending != "said":
                cut = {"interrupted": True} if ending == "cut" else {}
                log.says("shown so far", reasoning(self.some_text()), **cut)
                return "aborted" if ending == "cut" else "max_tokens"
            break
        ids = self.rng.sample(["c1", "c2", "c3", "call 4"], self.rng.randrange(0, 4))
        spoken = [text(self.some_text()), reasoning("hm")] if self.chance(0.7) else []
        if not ids and not spoken:
            spoken = [text("done")]
        log.says(*spoken, *calls(*ids))
        self.act(ids)
        return None

    def stream(self):
        shown = False
        for _ in range(self.rng.randrange(0, 6)):
            kind, said = self.rng.choice(["text", "text", "reasoning", "tool_call"]), self.some_text()
            more = {"index": 0, "id": "c1", "name": "bash"} if kind == "tool_call" else {}
            if self.chance(0.2):
                more["usage"] = {"input_tokens": 9, "output_tokens": self.rng.randrange(9)}
            self.log.chunk(said, kind, **more)
            shown = shown or (kind != "tool_call" and bool(said.strip()))
            self.tick()
        return shown

    def act(self, ids):
        """Run the calls side by side: the events of each in its own order, mixed at random."""
        courses = [self.course_of_call(id) for id in ids]
        while courses:
            course = self.rng.choice(courses)
            course.pop(0)()
            courses = [left for left in courses if left]
            self.tick()

    def course_of_call(self, id):
        log, events = self.log, []
        if self.chance(0.4):
            decision = self.rng.choice(["allowed", "allowed", "rejected", "cancelled", "unavailable"])
            events += [lambda: log.asked(id), lambda: log.decided(id, decision)]
            if decision != "allowed":
                return events + [lambda: log.result(id, "DENIED")]
        if self.chance(0.25):
            code = self.rng.choice(["BAD_ARGUMENTS", "UNKNOWN_TOOL", "ABORTED_BEFORE_DISPATCH"])
            return events + [lambda: log.result(id, code)]
        events.append(lambda: log.call(id, effect=self.rng.choice(["read", "idempotent", "write"])))
        for _ in range(self.rng.randrange(0, 3)):
            events.append(lambda: log.output(id, self.some_text()))
        code = self.rng.choice([None, None, "ABORTED", "TIMEOUT", "CHECKPOINT_FAILED", "TOOL_FAILED"])
        return events + [lambda: log.result(id, code, self.some_text())]


def random_log(rng, *, turns=3, noise=0.15, kills=0.02):
    """A valid, balanced log, as `Event`s: up to `turns` turns, some repaired, with traffic between them."""
    author = _Author(rng, noise=noise, kills=kills)
    if author.chance(0.9):
        author.put()
    for _ in range(rng.randrange(0, turns + 1)):
        author.turn()
        if author.chance(0.6):
            author.put()
    return author.log.events


def valid_logs(**options):
    """A hypothesis strategy of valid, balanced logs: long ones, and short ones that shrink well."""
    long = st.integers(0, 2**32).map(lambda seed: random_log(random.Random(seed), **options))
    short = st.randoms(use_true_random=False).map(lambda rng: random_log(rng, **{**options, "turns": 1}))
    return long | short


def examples(count=100):
    """Settings of a property test: no time limit, since the machine may be busy."""
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(max_examples=count, deadline=None, suppress_health_check=slow)


def lines(events):
    """The events as JSON lines: what "the same bytes" means."""
    return "".join(json.dumps(event.to_dict(), ensure_ascii=False, sort_keys=True) + "\n" for event in events)
