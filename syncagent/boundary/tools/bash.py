"""The `bash` tool: one command line in a shell of its own, with bounded output and no leftovers.

It knows processes and nothing of sessions.
"""

import math
import shutil
from typing import Any, Dict, List, Mapping, Optional

import attrs

from syncagent.boundary.process import ProcessError, ProcessResult, shared
from syncagent.boundary.tools.arguments import bad_arguments
from syncagent.boundary.tools.base import CallContext, Tool, ToolOutput
from syncagent.boundary.tools.schema import Signature
from syncagent.boundary.tools.text import NOTHING, clean
from syncagent.cancel import CancellationToken, Cause
from syncagent.seconds import check_seconds

__all__ = ["bash", "bash_tool"]

DESCRIPTION = (
    "Run a command line in bash and return what it writes, standard output and error together. It has"
    " no terminal and no input. Each call is a new shell; what a command leaves running in the"
    " background is stopped when the command ends. Long output is cut in the middle."
)


def bash_tool(
    *,
    name: str = "bash",
    timeout: float = 120.0,
    grace: float = 0.5,
    cwd: Optional[str] = None,
    env: Optional[Mapping[str, str]] = None,
) -> Tool:
    """A `bash` tool of your own settings.

    `timeout` (seconds) is what a call gets that names none. A command that is stopped gets TERM and,
    `grace` seconds later, KILL. `cwd` and `env` default to those of this process at each call. Raises
    `ValueError` for a number that is no such time.
    """
    if check_seconds("timeout", timeout, positive=True) is None or timeout == math.inf:
        raise ValueError(f"timeout is seconds above 0, not {timeout!r}")
    if check_seconds("grace", grace) is None or not 0 <= grace < math.inf:
        raise ValueError(f"grace is seconds from 0 up, not {grace!r}")

    def model_view(command: str, timeout: float = timeout) -> None:
        """What the model may say.

        Args:
            command: The command line.
            timeout: Seconds after which the command is stopped.
        """

    shell = _Shell(timeout=timeout, grace=grace, cwd=cwd, env=env)
    signature = Signature.of(model_view, name=name)
    return Tool(
        name=name,
        description=DESCRIPTION,
        parameters=signature.parameters,
        body=shell.body,
        effect="write",
        structure=lambda values: _check(name, signature.structure(values)),
        function=shell.call,
    )


def _check(tool: str, values: Dict[str, Any]) -> Dict[str, Any]:
    if not values.get("timeout", 1.0) > 0:
        raise bad_arguments(tool, "argument 'timeout' must be above 0")
    if "\0" in values["command"] or clean(values["command"]) != values["command"]:
        raise bad_arguments(tool, "argument 'command' has a character that no program can get")
    return values


@attrs.frozen(kw_only=True)
class _Shell:
    """The settings of one `bash` tool, and what it does with them."""

    timeout: float
    grace: float
    cwd: Optional[str]
    env: Optional[Mapping[str, str]]

    def call(
        self,
        command: str,
        timeout: Optional[float] = None,
        grace: Optional[float] = None,
        token: Optional[CancellationToken] = None,
    ) -> ToolOutput:
        """Run a command without an agent; `timeout` and `grace` default to the tool's."""
        given = {"timeout": timeout, "grace": grace}
        values = {"command": command, **{key: value for key, value in given.items() if value is not None}}
        with shared() as processes, CancellationToken() if token is None else token.child() as own:
            return self.body(values, CallContext(token=own, emit=lambda text: False, processes=processes))

    def body(self, values: Dict[str, Any], context: CallContext) -> ToolOutput:
        timeout = values.get("timeout", self.timeout)
        try:
            result = context.processes.run(
                [_shell(), "-c", values["command"]],
                token=context.token,
                cwd=self.cwd,
                env=self.env,
                timeout=timeout,
                grace=values.get("grace", self.grace),
                on_output=context.emit,
            )
        except ProcessError as exc:
            text = _join(exc.output, [str(exc)])
            return ToolOutput.from_text(text, error="TOOL_FAILED", message=str(exc))
        return _output(result, context.token, timeout)


def _shell() -> str:
    """The shell's path; "bash" where there is none, which then fails with a message that says so."""
    return shutil.which("bash") or shutil.which("sh") or "bash"


def _output(result: ProcessResult, token: CancellationToken, timeout: float) -> ToolOutput:
    """A result as the model reads it: the output, then what is to be said of the end, in brackets."""
    notes: List[str] = []
    error = None
    if result.timed_out:
        error, note = "TIMEOUT", f"timed out after {timeout:g} s and was stopped"
    elif result.cancelled and token.cause == Cause.TIMEOUT:
        error, note = "TIMEOUT", "timed out and was stopped"
    elif result.cancelled:
        error, note = "ABORTED", "cancelled and stopped"
    else:
        error, note = None if result.exit_code == 0 else "TOOL_FAILED", result.ending
    if error is not None:
        notes.append(note)
    if result.stopped:
        notes.append(
            f"{_processes(result.stopped)} {'was' if result.stopped == 1 else 'were'} stopped;"
            " background output not collected"
        )
    if result.left:
        notes.append(f"{_processes(result.left)} of another user could not be stopped")
    return ToolOutput.from_text(_join(result.output, notes), error=error, message=note if error else "")


def _processes(count: int) -> str:
    return f"{count} background process{'' if count == 1 else 'es'}"


def _join(output: str, notes: List[str]) -> str:
    text = output
    for note in notes:
        text += ("\n" if text and not text.endswith("\n") else "") + f"[{note}]\n"
    return text.rstrip("\n") if notes else text or NOTHING


bash = bash_tool()
