"""Read a piece of a text file, by lines, within bounds. It knows places and no tool."""

import io
from typing import Callable, List, Tuple, Union

from syncagent.boundary.tools.workspace import Place, refuse

__all__ = ["LINES", "MAX_BYTES", "buffered", "is_binary", "read_lines"]

#: How many lines a call gets that names no number, and how many bytes any call gets.
LINES = 2000
MAX_BYTES = 64 * 1024

#: Bytes that are read between two looks at the token.
PIECE = 64 * 1024

#: So much of a file's beginning says whether it is binary: then it has a NUL there.
HEAD = 8192


def is_binary(head: Union[bytes, bytearray]) -> bool:
    return b"\0" in head[:HEAD]


def buffered(fd: int) -> io.BufferedReader:
    """A reader that leaves the descriptor open."""
    return io.BufferedReader(io.FileIO(fd, closefd=False), PIECE)


def read_lines(place: Place, *, offset: int, limit: int, skip: int, check: Callable[[], None]) -> str:
    """Up to `limit` lines from line `offset` on, without the first `skip` bytes of the first one.

    What was left out, and how to get it, is said in brackets at the end. `check` raises if the call
    is to stop. Raises `ToolError` for what is no text, and for lines that the file doesn't have.
    """
    check()
    with place.file() as (fd, found), buffered(fd) as file:
        if is_binary(file.peek(HEAD)):
            refuse(place.path, f"it is a binary file of {found.st_size} bytes, and only text can be read")
        _go_to(file, place, offset, skip, check)
        data, lines = _collect(file, limit, check)
        more = bool(file.peek(1))
    data, notes = _cut(data, lines, offset=offset, skip=skip, more=more)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as exc:
        line = offset + data.count(b"\n", 0, exc.start)
        refuse(
            place.path,
            f"it is no UTF-8 text (line {line} has the byte 0x{data[exc.start]:02x}): a binary file, or one"
            f" of another encoding, of {found.st_size} bytes",
        )
    if not text and not notes:
        return "[the file is empty]" if found.st_size == 0 else "[nothing is left of the file here]"
    if text and not text.endswith("\n") and not more:
        notes.append("[the file ends here, without a newline]")
    lead = "\n" if notes and text and not text.endswith("\n") else ""
    return text + lead + "\n".join(notes)


def _go_to(file: io.BufferedReader, place: Place, offset: int, skip: int, check: Callable[[], None]) -> None:
    lines, rest = 0, False
    while lines < offset - 1:
        check()
        piece = file.readline(PIECE)
        if not piece:
            refuse(place.path, f"it has only {lines + rest} lines, so there is no line {offset}")
        rest = not piece.endswith(b"\n")
        lines += not rest
    left = skip
    while left:
        check()
        piece = file.readline(min(left, PIECE))
        if not piece or piece.endswith(b"\n"):
            refuse(place.path, f"line {offset} has no {skip} bytes to skip")
        left -= len(piece)


def _collect(file: io.BufferedReader, limit: int, check: Callable[[], None]) -> Tuple[bytes, int]:
    """The next lines, and how many of them are whole; the last one may be cut by the bound."""
    pieces: List[bytes] = []
    lines, room = 0, MAX_BYTES
    while lines < limit and room:
        check()
        piece = file.readline(room)
        if not piece:
            break
        pieces.append(piece)
        lines += piece.endswith(b"\n")
        room -= len(piece)
    return b"".join(pieces), lines


def _cut(data: bytes, lines: int, *, offset: int, skip: int, more: bool) -> Tuple[bytes, List[str]]:
    """What of it is shown, and the note that tells how to go on."""
    if skip:
        data = data[_middle(data) :]  # the rest of a character whose beginning was skipped
    if not more:
        return data, []
    if lines:
        data = data[: data.rindex(b"\n") + 1]
        last = offset + lines - 1
        return data, [f"[lines {offset} to {last}; there is more: go on with offset={last + 1}]"]
    data = data[: len(data) - _half(data)]
    return data, [f"[line {offset} is cut; its rest: offset={offset}, skip={skip + len(data)}]"]


def _middle(data: bytes) -> int:
    """How many bytes at the beginning go on with a character."""
    count = 0
    while count < min(3, len(data)) and data[count] & 0xC0 == 0x80:
        count += 1
    return count


def _half(data: bytes) -> int:
    """How many bytes at the end are the beginning of a character that isn't whole."""
    for count in range(1, min(3, len(data)) + 1):
        byte = data[-count]
        if byte & 0xC0 == 0xC0:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return count if length > count else 0
        if byte < 0x80:
            return 0
    return 0
