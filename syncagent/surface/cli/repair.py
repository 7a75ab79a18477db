"""`syncagent repair`: close what a dead process left open, or show what would close it."""

from typing import TYPE_CHECKING, Optional

import click

from syncagent.surface.cli.options import db_option

if TYPE_CHECKING:
    from syncagent.runtime.store import Store
    from syncagent.surface.cli.screen import Screen

__all__ = ["command"]


@click.command("repair", short_help="Close a turn whose process died.")
@click.argument("target", metavar="ID|FILE.jsonl")
@click.option("--dry-run", is_flag=True, help="Only print the events that would be added.")
@db_option
def command(target: str, dry_run: bool, db: Optional[str]) -> int:
    """Close the open turn of a cold session, and say what was added.

    For a FILE (see verify) the events that would close it are printed, one a line, and nothing is
    written. Exit code 3: the log breaks a rule; `seq rule text` is on standard error.
    """
    from syncagent.errors import InvalidLog
    from syncagent.surface.cli.screen import Screen
    from syncagent.surface.cli.source import opened_source
    from syncagent.surface.cli.text import one_line

    screen = Screen()
    with opened_source(target, db) as store:
        try:
            if store is None:
                _print_closers_of_file(target, screen)
            elif dry_run:
                _print_closers(target, store, screen)
            else:
                _repair(target, store, screen)
        except InvalidLog as exc:
            screen.notice(f"{exc.seq} {exc.rule} {one_line(exc.text)}")
            return 3
    return 0


def _print_closers_of_file(target: str, screen: "Screen") -> None:
    from syncagent.log import check, closers
    from syncagent.surface.cli.source import read_file

    for event in closers(check(read_file(target))):
        screen.json(event.to_dict())


def _print_closers(target: str, store: "Store", screen: "Screen") -> None:
    from syncagent.errors import SessionLive

    found = store.examine(target)
    if found.live:
        for info in store.sessions():
            if info.id == target and info.live:
                known = info.known is not False
                raise SessionLive(target, info.pid or 0, info.host or "?", info.since or 0, known)
    for event in found.closers:
        screen.json(event.to_dict())


def _repair(target: str, store: "Store", screen: "Screen") -> None:
    from syncagent.surface.cli.report import count, describe_repair
    from syncagent.surface.cli.text import one_line

    with store.open(target) as session:
        report = session.report
    if report is None:
        screen.line(f"session {target} is balanced: there is nothing to repair")
    else:
        added = count(len(report.events), "event")
        screen.line(one_line(f"{describe_repair(target, report)}; {added} added"))
