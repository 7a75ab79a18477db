"""The command as a whole: its parts, and what every ending of it means to the shell.

Modules of commands load nothing but click before they run. Exit codes are decided here alone, but
for those of a turn's endings, which are `run`'s.
"""

import contextlib
import importlib
import os
import shlex
import sys
import threading
from typing import Any, Optional, Sequence, Tuple

import click

from syncagent._version import __version__
from syncagent.errors import (
    InvalidLog,
    NotAStore,
    SessionExists,
    SessionLive,
    SessionNotFound,
    StoreCorrupt,
    SyncagentError,
)
from syncagent.surface.cli.screen import OutputFailed
from syncagent.surface.cli.text import printable

__all__ = ["command_line", "invoke"]

#: A module of this folder each, which has the click command `command`.
COMMANDS = ("run", "sessions", "show", "verify", "repair", "export", "demo")

PROGRAM = "syncagent"


def command_line() -> click.Group:
    """All commands that are there."""
    group = click.Group(
        PROGRAM,
        help="A synchronous agent runtime: run a model with tools, and read the logs of what it did.",
        callback=_without_command,
        invoke_without_command=True,
        no_args_is_help=False,
        subcommand_metavar="COMMAND [ARGS]...",
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    click.version_option(__version__, prog_name=PROGRAM)(group)
    for name in COMMANDS:
        group.add_command(importlib.import_module(f"{__package__}.{name}").command)
    return group


@click.pass_context
def _without_command(context: click.Context) -> None:
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        context.exit(2)


def invoke(args: Optional[Sequence[str]] = None) -> int:
    """Run the command; return its exit code. What goes wrong is one line on standard error."""
    try:
        code = _invoke(args)
        _flush()
        return code
    except OutputFailed as exc:
        return _output_failed(exc)


def _flush() -> None:
    """Write what click's own texts left in the buffer, while a failure can still be told."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except (OSError, ValueError) as exc:
        raise OutputFailed(exc) from exc


def _invoke(args: Optional[Sequence[str]]) -> int:
    try:
        code = command_line().main(
            None if args is None else list(args), prog_name=PROGRAM, standalone_mode=False
        )
        return code if isinstance(code, int) else 0
    except (click.Abort, KeyboardInterrupt):  # Ctrl+C where no turn is waited for
        return _interrupted()
    except click.UsageError as exc:
        _say(f"{_usage(exc)}Error: {exc.format_message()}")
        return 2
    except click.ClickException as exc:
        _say(f"Error: {exc.format_message()}")
        return exc.exit_code
    except SyncagentError as exc:
        code, hint = _meaning(exc)
        _say(f"Error: {exc}{hint}")
        return code
    except OSError as exc:
        if exc.filename is not None:
            raise
        raise OutputFailed(exc) from exc  # of click's own texts


def _meaning(exc: SyncagentError) -> Tuple[int, str]:
    """The exit code of an error, and what its text doesn't say: what to do."""
    if isinstance(exc, SessionLive):
        return 75, ""  # its text says what to do
    if isinstance(exc, SessionExists):
        return 2, ", or another file with --db"
    if isinstance(exc, SessionNotFound):
        if not os.path.exists(exc.path):
            return 2, ": there is no such file; --db names the database"
        return 2, f"; `syncagent sessions --db {shlex.quote(exc.path)}` lists those that are there"
    if isinstance(exc, InvalidLog):
        return 3, "; nothing was changed, `syncagent export` shows the log"
    if isinstance(exc, StoreCorrupt) and exc.seq is not None:
        return 3, ""
    if isinstance(exc, NotAStore):
        return 2, "; --db names a database of syncagent's"
    return 1, ""


def _usage(exc: click.UsageError) -> str:
    if exc.ctx is None:
        return ""
    return f"{exc.ctx.get_usage()}\nTry '{exc.ctx.command_path} --help' for help.\n\n"


def _say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # nobody is there to read it
        if sys.stderr is not None:
            sys.stderr.write(_encodable(sys.stderr, printable(text)) + "\n")
            sys.stderr.flush()


def _encodable(stream: Any, text: str) -> str:
    encoding = getattr(stream, "encoding", None) or "ascii"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _interrupted() -> int:
    others = [t for t in threading.enumerate() if t is not threading.main_thread() and not t.daemon]
    if others:
        # The interpreter would wait for them, and the user has just said that he won't.
        os._exit(130)
    return 130


def _output_failed(exc: OutputFailed) -> int:
    """Nobody reads standard output, or it can't be written: say so once, and not again at the exit."""
    if not exc.quiet:
        _say(f"Error: {exc}")
    with contextlib.suppress(OSError, ValueError, AttributeError):  # there is no descriptor behind it
        stdout = sys.stdout.fileno()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stdout)
        os.close(nowhere)
    return 1
