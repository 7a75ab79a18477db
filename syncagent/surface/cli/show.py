"""`syncagent show`: a session for people, or its events for programs. It writes nothing."""

from typing import TYPE_CHECKING, Optional

import click

from syncagent.surface.cli.options import check_id, db_option, json_option, opened_store

if TYPE_CHECKING:
    from syncagent.boundary.store.protocol import SessionInfo
    from syncagent.surface.cli.render import Renderer

__all__ = ["command"]


@click.command("show", short_help="Show what happened in a session.")
@click.argument("session", metavar="ID")
@db_option
@json_option("Print the events, one JSON object a line.")
def command(session: str, db: Optional[str], as_json: bool) -> int:
    """Show a session by turns and steps, as it stands in the log: also while a process runs it.

    Long texts are shortened; `export` has them whole.
    """
    from syncagent.surface.cli.render import Renderer
    from syncagent.surface.cli.screen import Screen

    check_id(session)
    screen = Screen()
    with opened_store(db) as store:
        events = store.read(session)
        if as_json:
            for event in events:
                screen.json(event.to_dict())
            return 0
        info = next((info for info in store.sessions() if info.id == session), None)
        renderer = Renderer(screen)
        for number, event in enumerate(events):
            if number == 0 and info is not None:
                _head(info, renderer)
            renderer.show(event)
        renderer.end(live=info is not None and info.live)
    return 0


def _head(info: "SessionInfo", renderer: "Renderer") -> None:
    from syncagent.surface.cli.report import count
    from syncagent.surface.cli.sessions import live_word

    who = f"live, {live_word(info)}" if info.live else "cold"
    ending = f", the last one {info.ending}" if info.ending is not None else ""
    renderer.head(f"session {info.id}: {count(info.turns, 'turn')}{ending}; {who}")
