"""Child processes that can't be left behind.

`Processes.run` runs one program; `shared()` gives the `Processes` that the agents of this OS process
have in common.

    runtime ── socket, descriptors ── supervisor ── fork ── guard ── fork, exec ── the tool

`supervisor`, `guard` and `proctree` are the child program, which runs outside of this package;
the other modules are the runtime's side. The child program owns a tool from its
first instruction on, so there is no moment in which a death of the runtime leaves one behind. No
process is forked from the runtime, which may have threads, and the runtime is no subreaper: the
host application never inherits strangers.

What holds on Linux: when a call has ended, and when the runtime has died, by kill -9 too, nothing
of its tools is left, neither a process group, nor what has left the group, nor a daemon. What can't
be reached: work that was handed to a service outside of the tree (systemd-run, docker, at, ssh), and
processes of another user, such as those that sudo starts; those are counted in the result.

What holds on macOS, by its documentation: the tool's process group is killed in the same cases. It
has no subreaper, so what leaves the group by setsid stays. On Windows the package can be imported,
and running a program raises `ProcessError`.
"""

from syncagent.boundary.process.client import Processes
from syncagent.boundary.process.run import ProcessError, ProcessResult
from syncagent.boundary.process.sharing import shared

__all__ = ["ProcessError", "ProcessResult", "Processes", "shared"]
