"""Where `verify` and `repair` find a log: a session of the database, or a file with one event a line.

It reads JSON and judges no order of events; what is no event breaks L1.
"""

import contextlib
import json
import os
import sys
from typing import IO, TYPE_CHECKING, Iterator, Optional

from syncagent.errors import InvalidLog, SessionNotFound
from syncagent.log import Event
from syncagent.surface.cli.options import WrongUse, check_id, opened_store

if TYPE_CHECKING:
    from syncagent.runtime.store import Store

__all__ = ["opened_source", "read_file"]


@contextlib.contextmanager
def opened_source(target: str, db: Optional[str]) -> "Iterator[Optional[Store]]":
    """The store with the session `target`, or None if ID|FILE means a file.

    A file is `-`, a path with a separator, a name that ends in `.jsonl`, or a file of a name that no
    session has. Raises `WrongUse` or `SessionNotFound` for what is neither.
    """
    if target == "-" or os.sep in target or target.lower().endswith(".jsonl"):
        yield None
        return
    with opened_store(db) as store:
        yield store if _has_session(store, target) else None


def _has_session(store: "Store", target: str) -> bool:
    try:
        next(store.read(check_id(target)), None)
    except (WrongUse, SessionNotFound):
        if not os.path.exists(target):
            raise
        return False
    return True


def read_file(path: str) -> Iterator[Event]:
    """The events of a JSONL file, `-` for standard input; blank lines are skipped.

    Raises `WrongUse` if it can't be read, and `InvalidLog` (L1) at a line that is no event.
    """
    with _opened(path) as file:
        seq = 0
        for number, line in enumerate(_lines(file, path), 1):
            if number == 1:
                line = _without_mark(line, path)
            if line.strip():
                seq += 1
                yield _event(line, number, seq)


@contextlib.contextmanager
def _opened(path: str) -> "Iterator[IO[bytes]]":
    if path == "-":
        if sys.stdin is None:
            raise WrongUse("standard input is closed")
        yield sys.stdin.buffer
        return
    try:
        file = open(path, "rb")
    except FileNotFoundError:
        raise WrongUse(f"there is no file {path}") from None
    except IsADirectoryError:
        raise WrongUse(f"{path} is a folder, not a file of events") from None
    except (OSError, ValueError) as exc:
        raise WrongUse(f"{path} can't be read: {getattr(exc, 'strerror', None) or exc}") from exc
    with file:
        yield file


def _lines(file: "IO[bytes]", path: str) -> Iterator[bytes]:
    try:
        yield from file
    except OSError as exc:
        raise WrongUse(f"{path} can't be read: {exc.strerror or exc}") from exc


def _without_mark(line: bytes, path: str) -> bytes:
    """The first line without a byte order mark."""
    if line.startswith(b"SQLite format 3\0"):
        raise WrongUse(f"{path} is a database, not a file of events: give it with --db, and a session's ID")
    return line[3:] if line.startswith(b"\xef\xbb\xbf") else line


def _event(line: bytes, number: int, seq: int) -> Event:
    try:
        value = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError:
        raise InvalidLog("L1", seq, f"line {number} is no UTF-8 text") from None
    except (ValueError, RecursionError) as exc:
        raise InvalidLog("L1", seq, f"line {number} is no JSON: {exc}") from None
    try:
        return Event.from_dict(value)
    except InvalidLog as exc:
        raise InvalidLog(exc.rule, exc.seq or seq, f"line {number}: {exc.text}") from None
