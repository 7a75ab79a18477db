"""The guard: the subreaper of exactly one tool, in a process of its own.

Part of the supervisor's child program: it imports the standard library, `lookup` and `proctree`
alone. What it says and hears on its control socket is listed in `supervisor`.
"""

import json
import os
import select
import signal
import time
from typing import TYPE_CHECKING, Any, Dict, List, NoReturn, Optional, Set, Tuple

if TYPE_CHECKING or __package__:
    from syncagent.boundary.process import lookup, proctree
else:  # the child program runs outside of the package and finds it beside this file
    import lookup
    import proctree

TERM_ROUND = 0.05  # seconds between two looks for descendants that TERM hasn't reached
REFUSED_LIMIT = 2.0  # seconds after which processes that refuse KILL, another user's, are left

Alive = Dict["proctree.Process", "proctree.Stat"]


class Guard:
    """Starts one tool and ends when nothing of it is left; `run` is all of its life."""

    def __init__(self, fds: List[int], runtime: int, libc: Any) -> None:
        self.request, self.stdin, self.output, self.control, *self.shared = fds
        self.runtime = runtime  # becomes readable when the runtime dies, or -1
        self.libc = libc
        self.wake = -1
        self.poll = select.poll()
        self.leader = 0
        self.status = "none"
        self.exited = False  # the leader has ended; reaped or not
        self.reaped = False  # from here on its pid and its group's id may be a stranger's
        self.stopping = False
        self.cut = False  # the leader was stopped, not only what it had left
        self.hurried = False
        self.grace = self.linger = 0.0
        self.linger_until: Optional[float] = None
        self.kill_at: Optional[float] = None
        self.refused_since: Optional[float] = None
        self.termed: Optional[Set[proctree.Process]] = None
        self.leftovers: Set[proctree.Process] = set()

    def run(self) -> None:
        """Read what to start, start it, watch it to its end and say how that was."""
        os.setsid()
        keep = {self.request, self.stdin, self.output, self.control, self.runtime}
        proctree.close_all_but(keep.union(self.shared))
        proctree.prctl(self.libc, proctree.PR_SET_CHILD_SUBREAPER, 1)
        self.wake = proctree.wake_on_child()
        os.set_blocking(self.control, False)
        for fd in (self.control, self.wake, self.runtime):
            if fd >= 0:
                self.poll.register(fd, select.POLLIN)
        self.say("hello")
        order = self.receive()
        left = 0
        if order is not None and self.spawn(order):
            left = self.watch()
        self.say(f"gone {self.status} {len(self.leftovers)} {left}")

    def say(self, line: str) -> None:
        try:
            os.write(self.control, (line.replace("\n", " ") + "\n").encode("utf-8", "replace"))
        except OSError:  # the runtime is gone; the next poll says so too
            pass

    # -- hearing the runtime ----------------------------------------------------------------------

    def receive(self) -> Optional[Dict[str, Any]]:
        """What to start; None if the runtime changed its mind, or died, before that was known."""
        data = bytearray()
        self.poll.register(self.request, select.POLLIN)
        while not self.stopping:
            if self.request in self.wait(None):
                piece = os.read(self.request, 1 << 16)
                data += piece
                if not piece:
                    break
        self.poll.unregister(self.request)
        os.close(self.request)
        self.wait(0)
        if self.stopping or not data:
            return None
        order: Dict[str, Any] = json.loads(data)
        self.grace = 0.0 if self.hurried else float(order["grace"])
        self.linger = float(order["linger"])
        return order

    def wait(self, seconds: Optional[float]) -> List[int]:
        """Wait until something happens, and do what the runtime says; return what is readable."""
        limit = None if seconds is None else int(seconds * 1000 + 0.999)
        ready = [fd for fd, _ in self.poll.poll(limit)]
        if self.wake in ready:
            proctree.drain(self.wake)
        if self.control in ready:
            self.listen()
        if self.runtime in ready:
            self.die(self.runtime)
        return ready

    def listen(self) -> None:
        try:
            word = os.read(self.control, 64)
        except OSError:
            word = b""
        if b"0" in word:
            self.hurry()
        if b"T" in word:
            self.stop()
        if b"K" in word:
            self.stop()
            self.hurry()
        if not word:
            self.die(self.control)

    def stop(self) -> None:
        """TERM now, KILL after the grace; a leader that had ended by itself was not stopped."""
        if self.stopping:
            return
        self.stopping = True
        if self.leader and not self.reaped:
            self.check_exit()
            if not self.exited:
                self.cut = True
                self.say("stopping")
        if self.kill_at is None:
            self.kill_at = time.monotonic() + self.grace

    def hurry(self) -> None:
        """No grace from now on."""
        self.hurried = True
        self.grace = 0.0
        if self.kill_at is not None:
            self.kill_at = time.monotonic()

    def die(self, source: int) -> None:
        """The runtime is dead, as `source` shows: KILL at once."""
        self.poll.unregister(source)
        self.stop()
        self.hurry()

    # -- the tool's life --------------------------------------------------------------------------

    def spawn(self, order: Dict[str, Any]) -> bool:
        me = os.getpid()
        try:
            self.leader = os.fork()
        except OSError as exc:
            self.say(f"error cannot start a process: {exc.strerror}")
            return False
        if self.leader == 0:
            become(order, (self.stdin, self.output), self.shared, me, self.libc)
        try:
            os.setpgid(self.leader, self.leader)
        except OSError:  # it has done so itself and is the tool already
            pass
        for fd in (self.stdin, self.output, *self.shared):
            os.close(fd)  # or the runtime would never read the end of the output
        self.say(f"pid {self.leader}")
        return True

    def watch(self) -> int:
        """Return when nobody is left, or the number of those that refuse to go."""
        pause = 0.001
        while True:
            self.check_exit()
            self.reap_others()
            alive: Alive = {}
            if self.exited or self.kill_at is not None:
                alive = proctree.descendants({self.leader} if self.exited else set())
            if self.exited and not alive and self.reap_last():
                return 0
            now = time.monotonic()
            if self.exited and self.kill_at is None:
                self.end_linger(now)
            if self.kill_at is None:
                limit = self.linger_until
                self.wait(None if limit is None else max(0.0, limit - now))
            elif now < self.kill_at:
                self.term(alive)
                self.wait(min(TERM_ROUND, self.kill_at - now))
            else:
                if self.kill(alive, now):
                    return len(alive)
                self.wait(pause)
                pause = min(0.05, pause * 1.5)

    def check_exit(self) -> None:
        """Look whether the leader has ended, and leave it unreaped: that keeps its group's id ours."""
        if self.exited:
            return
        if hasattr(os, "waitid"):
            ended = os.waitid(os.P_PID, self.leader, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        else:  # macOS has it from Python 3.13 on; before that only `ps` looks without reaping
            with os.popen(f"ps -o stat= -p {self.leader}") as file:
                ended = file.read().strip()[:1] in ("Z", "")
        if ended:
            self.exited = True
            self.say("exit")

    def reap_others(self) -> None:
        for pid in proctree.children_of(os.getpid()):
            if pid != self.leader:
                try:
                    os.waitpid(pid, os.WNOHANG)
                except ChildProcessError:
                    pass

    def reap_last(self) -> bool:
        """None but the leader is to be seen: reap it, and ask the kernel whether that is true."""
        if not self.reaped:
            if not proctree.sees_children():
                self.signal_group(signal.SIGKILL)  # nothing here tells whether the group is empty
            self.reaped = True
            self.status = str(os.waitstatus_to_exitcode(os.waitpid(self.leader, 0)[1]))
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return True
        return False

    def end_linger(self, now: float) -> None:
        if self.linger_until is None:
            self.linger_until = now + self.linger
        if now >= self.linger_until:
            self.kill_at = now + self.grace

    # -- signals ----------------------------------------------------------------------------------

    def signal_group(self, signum: int) -> None:
        if not self.reaped:
            try:
                os.killpg(self.leader, signum)
            except OSError:  # nobody in it can take it
                pass

    def term(self, alive: Alive) -> None:
        """TERM to the group once, and once to each descendant outside of it or first seen later."""
        first = self.termed is None
        if self.termed is None:
            self.termed = set()
            self.signal_group(signal.SIGTERM)
            self.signal_group(signal.SIGCONT)  # a stopped process takes no TERM
        for process, seen in alive.items():
            self.note_leftover(process)
            if process not in self.termed:
                self.termed.add(process)
                # It may have left the group since it was seen, and then the group's signal has missed it.
                stat = proctree.stat_of(process.pid) or seen
                if not first or self.reaped or stat.group != self.leader:
                    proctree.send(process, stat, signal.SIGTERM)
                    proctree.send(process, stat, signal.SIGCONT)

    def kill(self, alive: Alive, now: float) -> bool:
        """KILL to all; True once all that are left have refused it for a while."""
        self.signal_group(signal.SIGKILL)
        refused = 0
        for process, stat in alive.items():
            self.note_leftover(process)
            refused += not proctree.send(process, stat, signal.SIGKILL)
        if not alive or refused < len(alive):
            self.refused_since = None
            return False
        self.refused_since = self.refused_since or now
        return now - self.refused_since > REFUSED_LIMIT

    def note_leftover(self, process: "proctree.Process") -> None:
        if self.exited and not self.cut:
            self.leftovers.add(process)


def become(
    order: Dict[str, Any], stdio: Tuple[int, int], shared: List[int], guard: int, libc: Any
) -> NoReturn:
    """Turn this forked child into the tool. It exits 127 if there is no such program, else 126.

    A lookup is no program: this child makes it itself, and exits 0 when it has written the answer.
    """
    what = name = ""
    try:
        os.setpgid(0, 0)
        proctree.prctl(libc, proctree.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:  # it died before the line above could help
            os._exit(126)
        reset_signals()
        for fd, number in ((stdio[0], 0), (stdio[1], 1), (stdio[1], 2)):
            os.dup2(fd, number)
        for number, fd in enumerate(shared, start=3):
            os.dup2(fd, number)
            os.set_inheritable(number, True)  # dup2 does nothing where both are the same number
        proctree.close_all_but(set(range(3, 3 + len(shared))))
        if "resolve" in order:
            look_up(order)
        argv = [text.encode("latin-1") for text in order["argv"]]
        env = {key.encode("latin-1"): value.encode("latin-1") for key, value in order["env"]}
        what, name = "enter the folder", order["cwd"]
        os.chdir(name.encode("latin-1"))
        what, name = "start", order["argv"][0]
        os.execvpe(argv[0], argv, env)
    except OSError as exc:
        shown = name.encode("latin-1").decode("utf-8", "replace")
        os.write(2, f"cannot {what} {shown}: {exc.strerror}\n".encode("utf-8", "replace"))
        if isinstance(exc, FileNotFoundError) and what == "start":
            os._exit(127)
    finally:
        os._exit(126)


def look_up(order: Dict[str, Any]) -> NoReturn:
    """Write the answer to a lookup, and end."""
    lookup.enter(order)
    data = memoryview(lookup.answer(order))
    while data:
        data = data[os.write(1, data) :]
    os._exit(0)


def reset_signals() -> None:
    """Ignored and blocked signals outlive exec: give the tool what a shell would."""
    signal.set_wakeup_fd(-1)
    for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        try:
            signal.signal(signum, signal.SIG_DFL)
        except (OSError, ValueError):  # the C library keeps some to itself
            pass
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
