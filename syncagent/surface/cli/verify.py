"""`syncagent verify`: does a log keep the rules, and is it balanced? It writes nothing."""

from typing import Optional

import click

from syncagent.surface.cli.options import db_option

__all__ = ["command"]


@click.command("verify", short_help="Check a log against the rules.")
@click.argument("target", metavar="ID|FILE.jsonl")
@db_option
def command(target: str, db: Optional[str]) -> int:
    """Check a session, or a file with one event a line, against the rules of the log.

    A FILE is a path with a separator, a name that ends in .jsonl, - for standard input, or a file of
    a name that no session has. Exit code 0: balanced. 1: a turn is open. 3: a rule is broken, and the
    line printed is `seq rule text`.
    """
    from syncagent.errors import InvalidLog, StoreCorrupt
    from syncagent.log import LogState, Phase, advance
    from syncagent.surface.cli.report import count
    from syncagent.surface.cli.screen import Screen
    from syncagent.surface.cli.source import opened_source, read_file
    from syncagent.surface.cli.text import one_line

    screen = Screen()
    state = LogState()
    with opened_source(target, db) as store:
        events = read_file(target) if store is None else store.read(target)
        try:
            for event in events:
                advance(state, event)
        except InvalidLog as exc:
            screen.line(f"{exc.seq} {exc.rule} {one_line(exc.text)}")
            return 3
        except StoreCorrupt as exc:
            if exc.seq is None:
                raise
            screen.line(f"{exc.seq} L1 {one_line(str(exc))}")
            return 3
    if state.phase is Phase.IDLE:
        screen.line(f"balanced: {count(state.seq, 'event')}, {count(state.turn, 'turn')}")
        return 0
    screen.line(f"turn {state.turn} is open after event {state.seq} ({state.phase})")
    return 1
