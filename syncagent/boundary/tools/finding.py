"""List folders and search files below one, within bounds, in the order of their names.

It knows places and no tool. Links are shown and never followed; what is private isn't seen at all.
"""

import contextlib
import io
import os
from typing import Callable, Dict, Generator, Iterator, List, Optional, Sequence

import attrs

from syncagent.boundary.tools.reading import HEAD, MAX_BYTES, buffered, is_binary
from syncagent.boundary.tools.wildcard import Wildcard
from syncagent.boundary.tools.workspace import (
    Place,
    Private,
    Workspace,
    identity,
    kind_of,
    open_folder,
    shown,
    told,
)
from syncagent.errors import ToolError

__all__ = ["ENTRIES", "MATCHES", "Walk", "list_entries", "search_lines"]

#: How many entries and matches a call gets that names no number.
ENTRIES = 500
MATCHES = 100

MAX_NAMES = 50_000  # of one folder: they are sorted in one go, which nothing can stop
MAX_DEPTH = 64  # folders in folders: each holds a descriptor
LINE = 64 * 1024  # bytes of a line that are looked at in one go
WIDTH = 300  # characters of a line that are shown


@attrs.define(kw_only=True)
class Found:
    """An entry of a folder: its place and what it is."""

    place: Place
    stat: os.stat_result
    kind: str


@attrs.define(kw_only=True)
class Walk:
    """What is below a folder, and what was left out on the way."""

    private: Private
    check: Callable[[], None]
    left: Dict[str, int] = attrs.field(factory=dict)

    def below(self, workspace: Workspace, path: str, *, deep: bool) -> Generator[Found, None, None]:
        parts = workspace.parts(path)
        with told(path), workspace.folder(path, parts, self.private) as fd:
            yield from self._folder(fd, parts, MAX_DEPTH if deep else 0)

    def skip(self, what: str) -> None:
        self.left[what] = self.left.get(what, 0) + 1

    def notes(self) -> List[str]:
        return [f"[left out: {what} ({count})]" for what, count in sorted(self.left.items())]

    def _folder(self, fd: int, parts: Sequence[str], depth: int) -> Iterator[Found]:
        here = identity(os.fstat(fd))
        for name in self._names(fd):
            self.check()
            path = "/".join([*parts, name])
            place = Place(path=path, fd=fd, here=here, name=name, private=self.private)
            try:
                found = os.stat(name, dir_fd=fd, follow_symlinks=False)
            except OSError:  # it has gone since
                continue
            if self.private.has(here, name, found):
                continue
            one = Found(place=place, stat=found, kind=kind_of(found))
            yield one
            if one.kind == "folder" and depth:
                yield from self._deeper(one, [*parts, name], depth - 1)

    def _deeper(self, one: Found, parts: Sequence[str], depth: int) -> Iterator[Found]:
        if not depth:
            self.skip(f"folders that lie deeper than {MAX_DEPTH} levels")
            return
        try:
            fd = open_folder(one.place.fd, one.place.name)
        except OSError:
            self.skip("folders that can't be opened")
            return
        try:
            if not self.private.has(one.place.here, one.place.name, os.fstat(fd)):
                yield from self._folder(fd, parts, depth)
        finally:
            os.close(fd)

    def _names(self, fd: int) -> List[str]:
        names: List[str] = []
        with os.scandir(fd) as entries:
            for entry in entries:
                self.check()
                if len(names) == MAX_NAMES:
                    self.skip(f"folders' entries after the first {MAX_NAMES}")
                    break
                names.append(entry.name)
        return sorted(names)


def fits(pattern: Optional[Wildcard], path: str, name: str, whole: bool) -> bool:
    """Whether a file's name, or its `whole` path, is what the pattern says."""
    return pattern is None or pattern.matches(path if whole else name)


def list_entries(
    walk: Walk, found: Iterator[Found], *, names: Optional[Wildcard], whole: bool, offset: int, limit: int
) -> str:
    """One entry a line: a folder ends with a slash, a file is followed by its size."""
    lines: List[str] = []
    size = count = 0
    for one in found:
        if not fits(names, one.place.path, one.place.name, whole):
            continue
        count += 1
        if count <= offset:
            continue
        if len(lines) == limit or size > MAX_BYTES:
            lines.append(f"[there is more: go on with offset={count - 1}]")
            break
        lines.append(_line(one))
        size += len(lines[-1].encode("utf-8", "replace"))
    return "\n".join([*(lines or ["[nothing]"]), *walk.notes()])


def _line(one: Found) -> str:
    path = shown(one.place.path)
    if one.kind == "folder":
        return f"{path}/"
    if one.kind == "file":
        return f"{path} ({one.stat.st_size} bytes)"
    if one.kind == "link":
        with contextlib.suppress(OSError):
            return f"{path} -> {shown(os.readlink(one.place.name, dir_fd=one.place.fd))} (not followed)"
    return f"{path} ({one.kind})"


def search_lines(
    walk: Walk,
    found: Iterator[Found],
    pattern: Wildcard,
    *,
    files: Optional[Wildcard],
    whole: bool,
    offset: int,
    limit: int,
) -> str:
    """The lines that have the pattern, as `path:line: text`."""
    lines: List[str] = []
    size = count = searched = 0
    for one in found:
        if one.kind == "link":
            walk.skip("links, which are not followed")
        if one.kind != "file" or not fits(files, one.place.path, one.place.name, whole):
            continue
        searched += 1
        for line in _matches(walk, one.place, pattern):
            count += 1
            if count <= offset:
                continue
            if len(lines) == limit or size > MAX_BYTES:
                lines.append(f"[there is more: go on with offset={count - 1}]")
                return "\n".join([*lines, *walk.notes()])
            lines.append(line)
            size += len(line.encode("utf-8", "replace"))
    nothing = [f"[no match in {searched} file{'' if searched == 1 else 's'}]"]
    return "\n".join([*(lines or nothing), *walk.notes()])


def _matches(walk: Walk, place: Place, pattern: Wildcard) -> Iterator[str]:
    with contextlib.ExitStack() as stack:
        try:
            fd, _ = stack.enter_context(place.file())
        except (OSError, ToolError):  # not ours to read, or swapped since
            walk.skip("files that can't be read")
            return
        file = stack.enter_context(buffered(fd))
        try:
            if is_binary(file.peek(HEAD)):
                walk.skip("binary files")
                return
            yield from _matching_lines(walk, file, place, pattern)
        except OSError:
            walk.skip("files that can't be read to their end")


def _matching_lines(walk: Walk, file: io.BufferedReader, place: Place, pattern: Wildcard) -> Iterator[str]:
    number = 1
    while True:
        walk.check()
        piece = file.readline(LINE)
        if not piece:
            return
        text = piece.decode("utf-8", "replace").rstrip("\r\n")
        at = pattern.find(text)
        if at is not None:
            yield f"{shown(place.path)}:{number}: {_window(text, at)}"
        number += piece.endswith(b"\n")


def _window(text: str, at: int) -> str:
    """The line, or of a long one what stands around the match."""
    if len(text) <= WIDTH:
        return text
    start = max(0, min(at - WIDTH // 4, len(text) - WIDTH))
    end = start + WIDTH
    return ("..." if start else "") + text[start:end] + ("..." if end < len(text) else "")
