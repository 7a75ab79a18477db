"""`syncagent export`: a whole log as text, as it stands. It writes to standard output alone."""

from typing import Optional

import click

from syncagent.surface.cli.options import check_id, db_option, opened_store

__all__ = ["command"]


@click.command("export", short_help="Print all events of a session.")
@click.argument("session", metavar="ID")
@click.option(
    "--format",
    "format_",
    type=click.Choice(["jsonl"]),
    default="jsonl",
    show_default=True,
    help="jsonl: one event a line.",
)
@db_option
def command(session: str, format_: str, db: Optional[str]) -> int:
    """Print all events of a session, one JSON object a line, as they stand in the log.

    `syncagent verify` reads them back.
    """
    from syncagent.surface.cli.screen import Screen

    check_id(session)
    screen = Screen()
    with opened_store(db) as store:
        for event in store.read(session):
            screen.json(event.to_dict())
    return 0
