"""What several commands take, and the errors of wrong use. It loads nothing but click."""

import contextlib
import os
from typing import TYPE_CHECKING, Any, Callable, Iterator, Optional, TypeVar

import click

if TYPE_CHECKING:
    from syncagent.runtime.store import Store

__all__ = ["WrongUse", "check_id", "database", "db_option", "json_option", "opened_store"]

F = TypeVar("F", bound=Callable[..., Any])


class WrongUse(click.ClickException):
    """The user has to say something else; the text says what."""

    exit_code = 2


def db_option(command: F) -> F:
    """`--db`, from the flag, else SYNCAGENT_DB; see `database` for what None means."""
    return click.option(
        "--db",
        metavar="PATH",
        envvar="SYNCAGENT_DB",
        show_envvar=True,
        help="The database. Default: the config file's, or syncagent.db in your user data folder.",
    )(command)


def json_option(help: str) -> Callable[[F], F]:
    return click.option("--json", "as_json", is_flag=True, help=help)


def database(db: Optional[str]) -> str:
    """The path of the database that is meant: the flag's or the environment's, the config file's, the
    default. Raises `WrongUse` for a config file that is wrong.
    """
    if db is not None:
        return db
    import platformdirs

    from syncagent.surface.cli.settings import read_settings

    found = read_settings().db
    if found is not None:
        return found
    return os.path.join(platformdirs.user_data_dir("syncagent", appauthor=False), "syncagent.db")


@contextlib.contextmanager
def opened_store(db: Optional[str]) -> "Iterator[Store]":
    """The store at `--db`; nothing is written before something is. Raises `WrongUse` for a bad path."""
    from syncagent.runtime.store import Store

    path = database(db)
    if os.path.isdir(path):
        raise WrongUse(f"{path} is a folder: --db names the database file in it")
    try:
        store = Store(path)
    except ValueError as exc:
        raise WrongUse(f"--db: {exc}") from exc
    with store:
        yield store


def check_id(session: str) -> str:
    """The id, if it may name a session. Raises `WrongUse`."""
    from syncagent.boundary.store.protocol import check_session_id

    try:
        return check_session_id(session)
    except ValueError as exc:
        raise WrongUse(str(exc)) from exc
