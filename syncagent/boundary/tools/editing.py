"""Write a whole file, or replace an exact piece of one. It knows places and no tool."""

import codecs
import itertools
import os
from typing import Callable, Iterator, List, Tuple

from syncagent.boundary.tools.atomic import replace, undone
from syncagent.boundary.tools.reading import is_binary
from syncagent.boundary.tools.workspace import Place, Private, Workspace, kind_of, refuse
from syncagent.cancel import CancellationToken

__all__ = ["MAX_EDIT", "edit", "write"]

#: A file that is larger, before or after, is not edited: it is held in memory.
MAX_EDIT = 4 * 1024 * 1024

PIECE = 1 << 18  # bytes that are read or searched between two looks at the token
KEY = 256  # bytes of a piece of text that are searched for before the rest is compared
SHOWN = 10  # lines that an error names
MAX_PLACES = 100_000  # that are counted, and replaced in one go


def write(workspace: Workspace, path: str, content: str, private: Private, token: CancellationToken) -> str:
    """Make `content` the file's content; missing folders are made."""
    data = _encoded(path, "content", content)
    made: List[Tuple[int, str]] = []
    with undone(made), workspace.place(path, private, made) as place:
        old = place.look()
        if old is not None:
            if kind_of(old) != "file":
                refuse(place.path, f"it is a {kind_of(old)}, and only regular files are written")
            _must_be_writable(place)
        replace(place, data, old=old, token=token)
    what = "new file" if old is None else f"it had {old.st_size}"
    return f"wrote {len(data)} bytes to {place.path} ({what})"


def edit(
    workspace: Workspace,
    path: str,
    old: str,
    new: str,
    every: bool,
    private: Private,
    token: CancellationToken,
) -> str:
    """Replace the text `old` by `new`, once or everywhere; line ends stay what they are in the file."""
    if not old:
        refuse(path, "'old' is empty; give the text that is to be replaced, or use write_file")
    before, after = _encoded(path, "old", old), _encoded(path, "new", new)
    if before == after:
        refuse(path, "'old' and 'new' are the same, so there is nothing to do")
    check = token.raise_if_cancelled
    with workspace.place(path, private) as place:
        data, found = _content(place, check)
        _must_be_writable(place)
        before, after = _with_line_ends_of(data, before, after, check)
        places = list(itertools.islice(_places(data, before, check), MAX_PLACES + 1))
        if len(places) > MAX_PLACES:
            refuse(place.path, f"the text 'old' is there more than {MAX_PLACES} times; give more of it")
        _must_be_clear(place, data, before, places, every, check)
        size = len(data) + len(places) * (len(after) - len(before))
        if size > MAX_EDIT:
            refuse(place.path, f"it would have {size} bytes; files above {MAX_EDIT} are not edited")
        replace(place, _replaced(data, places, len(before), after, check), old=found, token=token)
    times = "once" if len(places) == 1 else f"{len(places)} times"
    return f"replaced it {times} in {place.path}"


def _encoded(path: str, what: str, text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as exc:
        refuse(path, f"'{what}' has a lone surrogate at character {exc.start}, which is no Unicode text")


def _must_be_writable(place: Place) -> None:
    # The rename needs only the folder: without this a read-only file would be replaced.
    if not os.access(place.name, os.W_OK, dir_fd=place.fd):
        refuse(place.path, "the file is read-only; its mode has to be changed before it can be written")


def _content(place: Place, check: Callable[[], None]) -> Tuple[bytes, os.stat_result]:
    data, decoder, is_text = bytearray(), codecs.getincrementaldecoder("utf-8")(), True
    check()
    with place.file() as (fd, found):
        if found.st_size > MAX_EDIT:
            refuse(place.path, f"it has {found.st_size} bytes; files above {MAX_EDIT} are not edited")
        while len(data) <= MAX_EDIT:
            check()
            piece = os.read(fd, PIECE)
            data += piece
            is_text = is_text and _goes_on(decoder, piece)
            if not piece:
                break
    if is_binary(data) or not is_text:
        refuse(place.path, f"it is a binary file, or no UTF-8 text, of {len(data)} bytes: it is not edited")
    return bytes(data), found


def _goes_on(decoder: codecs.IncrementalDecoder, piece: bytes) -> bool:
    """Whether it is still text; an empty piece is the end."""
    try:
        decoder.decode(piece, not piece)
    except UnicodeDecodeError:
        return False
    return True


def _with_line_ends_of(
    data: bytes, before: bytes, after: bytes, check: Callable[[], None]
) -> Tuple[bytes, bytes]:
    """In a file whose lines all end with CRLF, a model's plain line ends mean CRLF."""
    ends = _count(data, b"\n", 0, len(data), check)
    if not ends or _count(data, b"\r\n", 0, len(data), check) != ends:
        return before, after
    return _crlf(before), _crlf(after)


def _count(data: bytes, what: bytes, start: int, end: int, check: Callable[[], None]) -> int:
    """How often a line end begins in this part of `data`."""
    count = 0
    for at in range(start, end, PIECE):
        check()
        count += data.count(what, at, min(end, at + PIECE) + len(what) - 1)
    return count


def _crlf(text: bytes) -> bytes:
    return text.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")


def _places(data: bytes, text: bytes, check: Callable[[], None]) -> Iterator[int]:
    """Where `text` occurs, from the left, none inside another.

    A search for all of it in all of the file could take hours on an old Python, and nothing would
    stop it. The pieces that are searched at a time are short, and so is what is searched for.
    """
    key, at = text[:KEY], 0
    while at + len(text) <= len(data):
        check()
        end = min(len(data), at + PIECE + len(key))
        hit = data.find(key, at, end)
        if hit < 0:
            at = end - len(key) + 1
        elif data[hit : hit + len(text)] == text:
            yield hit
            at = hit + len(text)
        else:
            at = hit + 1


def _must_be_clear(
    place: Place, data: bytes, text: bytes, places: List[int], every: bool, check: Callable[[], None]
) -> None:
    if not places:
        first = text.split(b"\n", 1)[0].strip()
        near = [at for at, _ in zip(_places(data, first, check), range(SHOWN))] if first else []
        hint = f"; its first line is there {_on_lines(data, near, check)}" if near else ""
        refuse(
            place.path,
            "the text 'old' isn't there. It has to be exact, with its spaces and line ends: read the file"
            f" again{hint}",
        )
    if len(places) > 1 and not every:
        where = _on_lines(data, places[:SHOWN], check)
        more = f" and {len(places) - SHOWN} more" if len(places) > SHOWN else ""
        refuse(
            place.path,
            f"the text 'old' is there {len(places)} times, {where}{more}. Give more of the text around the"
            " right one, or all=true to replace them all",
        )


def _on_lines(data: bytes, places: List[int], check: Callable[[], None]) -> str:
    numbers, line, at = [], 1, 0
    for place in places:
        line += _count(data, b"\n", at, place, check)
        at = place
        if line not in numbers:
            numbers.append(line)
    return ("on line " if len(numbers) == 1 else "on lines ") + ", ".join(str(number) for number in numbers)


def _replaced(data: bytes, places: List[int], width: int, after: bytes, check: Callable[[], None]) -> bytes:
    pieces, at = [], 0
    for place in places:
        check()
        pieces += [data[at:place], after]
        at = place + width
    pieces.append(data[at:])
    return b"".join(pieces)
