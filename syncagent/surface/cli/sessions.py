"""`syncagent sessions`: what is in a database, one line for each session, the last updated first."""

import os
from typing import TYPE_CHECKING, Any, Dict, List, Optional

import click

from syncagent.surface.cli.options import db_option, json_option, opened_store

if TYPE_CHECKING:
    from syncagent.boundary.store.protocol import SessionInfo

__all__ = ["command"]


@click.command("sessions", short_help="List the sessions of a database.")
@db_option
@json_option("Print a JSON object for each session, one a line.")
def command(db: Optional[str], as_json: bool) -> int:
    """List the sessions, the last updated first.

    The ending is how the last turn ended: open while a process runs it, unfinished when that process
    died in it, a dash before the first. Nothing is written.
    """
    from syncagent.surface.cli.screen import Screen

    screen = Screen()
    with opened_store(db) as store:
        found = store.sessions()
        if as_json:
            for info in found:
                screen.json(_object(info))
        elif found:
            for line in _table(found):
                screen.line(line)
        elif os.path.exists(store.path):
            screen.notice(f"there are no sessions in {store.path}")
        else:
            screen.notice(f"there is no database {store.path}: --db names one that is there")
    return 0


def _object(info: "SessionInfo") -> Dict[str, Any]:
    return {
        "id": info.id,
        "live": info.live,
        "turns": info.turns,
        "ending": info.ending,
        "updated": info.updated,
        "created": info.created,
        "pid": info.pid,
        "host": info.host,
        "since": info.since,
    }


def _table(infos: "List[SessionInfo]") -> List[str]:
    from syncagent.surface.cli.text import when

    rows = [("ID", "ENDING", "TURNS", "UPDATED", "LIVE")]
    for info in infos:
        row = (info.id, info.ending or "-", str(info.turns), when(info.updated), live_word(info))
        rows.append(row)
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths)]
        cells[2] = row[2].rjust(widths[2])
        lines.append("  ".join([*cells, row[4]]).rstrip())
    return lines


def live_word(info: "SessionInfo") -> str:
    """Who drives the session, printable; nothing if nobody does."""
    from syncagent.surface.cli.text import one_line

    return f"process {info.pid} on {one_line(info.host or '?', 80)}" if info.live else ""
