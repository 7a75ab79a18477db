"""`syncagent run`: one message, one turn, its answer; a script's and a person's way in.

The main thread waits for the turn and hears signals; a second one prints what the log gets.
"""

import contextlib
import os
import shlex
import sys
from typing import TYPE_CHECKING, Any, Callable, Optional, Tuple

import attrs
import click

from syncagent.surface.cli.options import WrongUse, check_id, database, db_option, json_option, opened_store

if TYPE_CHECKING:
    from syncagent.runtime.result import TurnResult
    from syncagent.surface.cli.screen import Screen
    from syncagent.surface.interrupt import Agent

__all__ = ["command"]

#: No turn is waited for longer, in seconds: 30 years. Above, the clocks of the system overflow.
LONGEST = 1e9


@attrs.frozen(kw_only=True)
class Wish:
    """What the user asked for."""

    prompt: str
    db: Optional[str]
    model: Optional[str]
    base_url: Optional[str]
    session: Optional[str]
    system: str
    tool: Tuple[str, ...]
    yes: bool
    timeout: Optional[float]
    steal: bool
    as_json: bool
    json_lines: bool


@click.command("run", short_help="Ask once and print the answer.")
@click.argument("prompt")
@db_option
@click.option(
    "-m", "--model", metavar="NAME", envvar="SYNCAGENT_MODEL", show_envvar=True, help="openai:NAME, or NAME."
)
@click.option(
    "--base-url",
    metavar="URL",
    envvar="OPENAI_BASE_URL",
    show_envvar=True,
    help="The server's address, such as http://127.0.0.1:8000/v1.",
)
@click.option("-s", "--session", metavar="ID", help="Go on with this session, or begin it.")
@click.option("--system", metavar="TEXT", default="", help="The system prompt.")
@click.option(
    "--tool",
    metavar="NAME",
    multiple=True,
    help="bash, files (of this folder), or module:function. May be repeated. Default: none.",
)
@click.option("--yes", is_flag=True, help="Let the model call tools that can change things.")
@click.option(
    "--timeout",
    metavar="SECONDS",
    type=click.FLOAT,
    help="Stop the turn after this time.",
)
@click.option("--steal", is_flag=True, help="Take the session from an owner that can't be asked.")
@json_option("Print one JSON object at the end, instead of the answer.")
@click.option("--json-lines", is_flag=True, help="Print each event as a JSON line, and the object last.")
def command(**options: Any) -> int:
    """Send PROMPT, or with - what standard input says, and print the answer as it comes.

    Notices and the session's id go to standard error. Ctrl+C stops the turn in order; a second one
    kills what still runs.
    """
    from syncagent.surface.cli.signals import exiting

    with exiting():
        return _run(Wish(**options))


def _run(wish: Wish) -> int:
    from syncagent.surface.cli.model import make_model
    from syncagent.surface.cli.screen import Screen
    from syncagent.surface.cli.tools import load_tools

    # Whatever can be wrong is found before a session is made.
    if wish.session is not None:
        check_id(wish.session)
    if wish.timeout is not None and not 0 < wish.timeout <= LONGEST:
        raise WrongUse(f"--timeout: {wish.timeout:g} is no time: give seconds above 0")
    tools = load_tools(wish.tool, yes=wish.yes)
    wish = _with_settings(wish)
    prompt = _prompt(wish.prompt)
    screen = Screen()
    with contextlib.closing(make_model(wish.model, base_url=wish.base_url)) as model:
        with opened_store(wish.db) as store:
            from syncagent.surface.interrupt import Agent

            agent = Agent(
                model,
                tools=tools,
                store=store,
                session=wish.session,
                system=wish.system,
                steal=wish.steal,
            )
            return _attend(agent, wish, prompt, screen, retries=model.max_retries)


def _with_settings(wish: Wish) -> Wish:
    """With what the config file says where neither a flag nor the environment said it."""
    from syncagent.surface.cli.settings import read_settings

    if wish.model is not None and wish.base_url is not None:
        return wish
    found = read_settings()
    return attrs.evolve(
        wish,
        model=found.model if wish.model is None else wish.model,
        base_url=found.base_url if wish.base_url is None else wish.base_url,
    )


def _prompt(given: str) -> str:
    text = given
    if given == "-":
        try:
            data = sys.stdin.buffer.read() if sys.stdin is not None else b""
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as exc:
            raise WrongUse(f"standard input is no UTF-8 text: see byte {exc.start + 1}") from exc
        except OSError as exc:
            raise WrongUse(f"standard input can't be read: {exc.strerror or exc}") from exc
    if not text.strip():
        where = "standard input is empty" if given == "-" else "the prompt is empty"
        raise WrongUse(f"{where}: say what the model is to do")
    return text.rstrip("\r\n")


def _attend(agent: "Agent", wish: Wish, prompt: str, screen: "Screen", *, retries: int) -> int:
    """Wait for the turn, with a printer beside; close the agent and say how it went."""
    from syncagent.surface.cli.printer import Printer
    from syncagent.surface.cli.report import describe_repair

    printer = Printer(
        agent.follow(since=agent.seq),
        screen=screen,
        answer=not (wish.as_json or wish.json_lines),
        lines=wish.json_lines,
        retries=retries,
        on_lost=agent.cancel,
    )
    try:
        with contextlib.ExitStack() as stack:
            stack.callback(_or_leave, printer.join)
            stack.callback(_or_leave, agent.close)  # first: then what the printer follows has an end
            printer.start()
            if agent.opened is not None:
                screen.notice(describe_repair(agent.session, agent.opened))
            result, code = _wait(agent, prompt, wish.timeout, screen)
        if printer.failure is not None and code is None:
            raise printer.failure
        return _report(agent, wish, result, code, screen)
    finally:
        screen.notice(f"session {agent.session}; continue with: {_again(agent.session, wish)}", width=2000)


def _or_leave(step: Callable[[], object]) -> None:
    """One step of putting things away; a signal in it leaves at once, with the turn closed already."""
    try:
        step()
    except KeyboardInterrupt:
        os._exit(130)
    except SystemExit as exc:
        os._exit(int(exc.code or 0))


def _wait(
    agent: "Agent", prompt: str, timeout: Optional[float], screen: "Screen"
) -> "Tuple[TurnResult, Optional[int]]":
    """The turn's result, and the exit code of the signal that ended it, None if none did."""
    from syncagent.surface.cli.signals import aside

    try:
        with aside():
            return agent.run(prompt, timeout=timeout, notice=screen.notice), None
    except (KeyboardInterrupt, SystemExit) as exc:
        code = int(exc.code or 0) if isinstance(exc, SystemExit) else 130
        if not hasattr(exc, "result"):
            raise
        if exc.result is None:
            # Asked three times to go: the log stays as it is, the next open repairs it, and the
            # processes of tools end with this one.
            os._exit(code)
        return exc.result, code


def _report(
    agent: "Agent", wish: Wish, result: "TurnResult", code: Optional[int], screen: "Screen"
) -> int:
    from syncagent.surface.cli.report import describe_ending, result_object
    from syncagent.surface.cli.screen import OutputFailed

    if wish.as_json or wish.json_lines:
        # A signal often reaches the reader of our output too: what counts then is the signal.
        with contextlib.suppress(OutputFailed) if code is not None else contextlib.nullcontext():
            screen.json(result_object(agent.session, result, agent.opened), flush=True)
    if code is not None:
        screen.notice(describe_ending(result))
        return code
    if result.reason == "completed":
        return 0
    if result.reason == "aborted":
        screen.notice(describe_ending(result))
        return 124 if result.cause == "timeout" else 1
    screen.notice(f"Error: {describe_ending(result)}", width=2000)
    return 1


def _again(session: str, wish: Wish) -> str:
    words = ["syncagent", "run", "-s", session]
    if wish.db is not None:
        words += ["--db", database(wish.db)]
    return shlex.join(words) + " PROMPT"
