"""`syncagent demo`: three incidents, played for real on this machine. No key, no network."""

import os
import tempfile
from typing import Optional

import click

__all__ = ["command"]


@click.command("demo", short_help="Play a stop, a kill -9 and its repair, without key or network.")
@click.option("--db", metavar="PATH", help="Keep the database in this file. Default: thrown away.")
def command(db: Optional[str]) -> int:
    """Play three incidents for real: a stop, a kill -9, and what a truncating recovery would lose.

    A scripted model server runs on the loopback interface; the tools are real processes. Each line
    with a number is an event that the log gained; a star marks what repair added.
    """
    from syncagent.surface.cli.screen import Screen
    from syncagent.surface.cli.text import printable
    from syncagent.surface.demo import Demo

    screen = Screen()

    def say(line: str) -> None:
        screen.write(printable(line) + "\n", flush=True)

    with tempfile.TemporaryDirectory(prefix="syncagent-demo-") as folder:
        path = db if db is not None else os.path.join(folder, "demo.db")
        say(f"Three incidents, played for real. Database: {path}")
        Demo(path, folder=folder, say=say).play()
    if db is None:
        say("\nThe database is removed now: with --db demo.db it is kept, for a look with show.")
    else:
        say(f"\nKept in {path}. Look: syncagent show demo-crash --db {path}")
    return 0
