"""The file tools: read, write, edit, list and search, in a workspace that they can't leave.

It knows what a model may say and hands it on; where files are and how they are changed is known below.
"""

import os
from typing import List, Optional, Tuple, Union

import attrs

from syncagent.boundary.tools import editing, finding, reading
from syncagent.boundary.tools.arguments import bad_arguments
from syncagent.boundary.tools.base import CallContext, Tool, tool
from syncagent.boundary.tools.wildcard import Wildcard
from syncagent.boundary.tools.workspace import Private, Workspace
from syncagent.cancel import CancellationToken

__all__ = ["file_tools"]

MAX_PATTERN = 1000  # characters


def file_tools(root: Union[str, "os.PathLike[str]"]) -> List[Tool]:
    """`read_file`, `write_file`, `edit_file`, `list_files` and `search_files` below the folder `root`.

    No path leads out of it, also not through a link, and none to the files of the store that the
    agent's session is kept in. Raises `ValueError` if `root` is no folder, and `NotImplementedError` on
    a system where a model's paths can't be confined, such as Windows.
    """
    files = _Files(workspace=Workspace.of(root))
    return [
        tool(effect="read")(files.read_file),
        # Alone: two changes of one file that run side by side would lose one of them.
        tool(effect="idempotent", exclusive=True)(files.write_file),
        tool(effect="write", exclusive=True)(files.edit_file),
        tool(effect="read")(files.list_files),
        tool(effect="read")(files.search_files),
    ]


@attrs.frozen(kw_only=True)
class _Files:
    """The five tools of one workspace. Without a context they can be called as plain functions."""

    workspace: Workspace

    def read_file(
        self,
        path: str,
        offset: int = 1,
        limit: int = reading.LINES,
        skip: int = 0,
        *,
        context: Optional[CallContext] = None,
    ) -> str:
        """Read a text file. Long files come in pieces; a note in brackets at the end says how to go on.

        Args:
            path: The file, relative to the workspace.
            offset: The number of the first line.
            limit: How many lines at most.
            skip: How many bytes of the first line to leave out, for a line that is too long.
        """
        _at_least("read_file", offset=(offset, 1), limit=(limit, 1), skip=(skip, 0))
        token, private = _given(context)
        check = token.raise_if_cancelled
        with self.workspace.place(path, private) as place:
            return reading.read_lines(place, offset=offset, limit=limit, skip=skip, check=check)

    def write_file(self, path: str, content: str, *, context: Optional[CallContext] = None) -> str:
        """Write a text file: a new one, or in place of the whole old one. Missing folders are made.

        Args:
            path: The file, relative to the workspace.
            content: All of its new content.
        """
        token, private = _given(context)
        return editing.write(self.workspace, path, content, private, token)

    def edit_file(
        self, path: str, old: str, new: str, all: bool = False, *, context: Optional[CallContext] = None
    ) -> str:
        """Replace a piece of a text file. The old text must be exact, and be there once unless all is true.

        Args:
            path: The file, relative to the workspace.
            old: The text to replace, with its spaces and line ends.
            new: What to put in its place.
            all: Replace it wherever it is.
        """
        token, private = _given(context)
        return editing.edit(self.workspace, path, old, new, all, private, token)

    def list_files(
        self,
        path: str = ".",
        recursive: bool = False,
        names: str = "*",
        offset: int = 0,
        limit: int = finding.ENTRIES,
        *,
        context: Optional[CallContext] = None,
    ) -> str:
        """List a folder: folders end with a slash, files are followed by their size.

        Args:
            path: The folder, relative to the workspace.
            recursive: List the folders below it too.
            names: Only these, such as "*.py"; with a slash in it, the path from the workspace is compared.
            offset: How many entries to leave out.
            limit: How many entries at most.
        """
        _at_least("list_files", offset=(offset, 0), limit=(limit, 1))
        walk, pattern = self._walk(context), _names("list_files", "names", names)
        found = walk.below(self.workspace, path, deep=recursive)
        try:
            return finding.list_entries(
                walk, found, names=pattern, whole="/" in names, offset=offset, limit=limit
            )
        finally:
            found.close()

    def search_files(
        self,
        text: str,
        path: str = ".",
        files: str = "*",
        wildcards: bool = False,
        ignore_case: bool = False,
        offset: int = 0,
        limit: int = finding.MATCHES,
        *,
        context: Optional[CallContext] = None,
    ) -> str:
        """Find the lines that have a text, in all files of a folder and below. Binary files are left out.

        Args:
            text: What to look for in each line.
            path: The folder, relative to the workspace.
            files: Only in these, such as "*.py"; with a slash in it, the path from the workspace is compared.
            wildcards: Let * in the text stand for any run of characters and ? for any one.
            ignore_case: Take capital and small letters for the same.
            offset: How many matches to leave out.
            limit: How many matches at most.
        """
        _at_least("search_files", offset=(offset, 0), limit=(limit, 1))
        _check_pattern("search_files", "text", text)
        make = Wildcard.of if wildcards else Wildcard.literal
        walk, only = self._walk(context), _names("search_files", "files", files)
        found = walk.below(self.workspace, path, deep=True)
        try:
            return finding.search_lines(
                walk,
                found,
                make(text, ignore_case=ignore_case),
                files=only,
                whole="/" in files,
                offset=offset,
                limit=limit,
            )
        finally:
            found.close()

    def _walk(self, context: Optional[CallContext]) -> finding.Walk:
        token, private = _given(context)
        return finding.Walk(private=private, check=token.raise_if_cancelled)


def _given(context: Optional[CallContext]) -> Tuple[CancellationToken, Private]:
    if context is None:
        return CancellationToken(), Private.of(())
    context.token.raise_if_cancelled()
    return context.token, Private.of(context.private)


def _at_least(name: str, **numbers: Tuple[int, int]) -> None:
    for key, (value, least) in numbers.items():
        if value < least:
            raise bad_arguments(name, f"argument {key!r} must be at least {least}, not {value}")


def _check_pattern(name: str, key: str, text: str) -> None:
    if not text or "\n" in text:
        raise bad_arguments(name, f"argument {key!r} is what to find within one line, not empty")
    if len(text) > MAX_PATTERN:
        raise bad_arguments(name, f"argument {key!r} has more than {MAX_PATTERN} characters")


def _names(name: str, key: str, text: str) -> Optional[Wildcard]:
    _check_pattern(name, key, text)
    return None if text == "*" else Wildcard.of(text)
