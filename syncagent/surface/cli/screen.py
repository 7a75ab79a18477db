"""Standard output and standard error of one command: what goes where, and what happens when it can't.

Answers and data go to standard output and fail loudly; notices go to standard error and never fail.
"""

import contextlib
import os
import sys
from typing import Any, Optional

from syncagent.surface.cli.text import json_line, one_line

__all__ = ["OutputFailed", "Screen"]


class OutputFailed(Exception):
    """Standard output can't be written; `quiet` if its reader has simply left, as `head` does."""

    def __init__(self, error: Exception) -> None:
        super().__init__(f"standard output can't be written: {error}")
        self.quiet = isinstance(error, BrokenPipeError)


class Screen:
    """The two streams, as they stand when the command starts. Safe to use from several threads."""

    def __init__(self) -> None:
        self._out, self._err = sys.stdout, sys.stderr
        self._midline = False

    def write(self, text: str, *, flush: bool = False) -> None:
        """Write to standard output what is printable already. Raises `OutputFailed`."""
        if not text:
            return
        try:
            _write(self._out, text, flush)
        except (OSError, ValueError) as exc:  # ValueError: the stream was closed
            raise OutputFailed(exc) from exc
        self._midline = text[-1] != "\n"

    def line(self, text: str) -> None:
        """Write one line, or several, to standard output."""
        self.write(text + "\n")

    def heading(self, text: str) -> None:
        """Write one line that stands out on a terminal."""
        self.line(f"\x1b[1m{text}\x1b[0m" if may_colour(self._out) else text)

    def json(self, value: Any, *, flush: bool = False) -> None:
        """Write one line of JSON."""
        encoding = getattr(self._out, "encoding", None) or "utf-8"
        self.write(json_line(value, ascii_only=encoding.lower() not in ("utf-8", "utf8")) + "\n", flush=flush)

    def end_line(self) -> None:
        """End the line of standard output, if one is begun."""
        if self._midline:
            self.write("\n", flush=True)

    def flush(self) -> None:
        """Raises `OutputFailed` if what was written can't be."""
        try:
            if self._out is not None:
                self._out.flush()
        except (OSError, ValueError) as exc:
            raise OutputFailed(exc) from exc

    def notice(self, text: str, *, width: int = 400) -> None:
        """One line on standard error. It never raises: nobody may be there to read it."""
        line = one_line(text, width)
        if may_colour(self._err):
            line = f"\x1b[2m{line}\x1b[0m"
        # On a terminal an answer that is just being written stands on this very line.
        begin = "\n" if self._midline and _is_terminal(self._err) and _is_terminal(self._out) else ""
        with contextlib.suppress(OSError, ValueError):  # nobody reads notices any more
            _write(self._err, f"{begin}{line}\n", True)
            self._midline = self._midline and not begin


def _write(stream: Any, text: str, flush: bool) -> None:
    if stream is None:  # Python's word for a descriptor that was closed before it started
        return
    try:
        stream.write(text)
    except UnicodeEncodeError:
        encoding = getattr(stream, "encoding", None) or "ascii"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    if flush:
        stream.flush()


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):  # there is none, or it is closed
        return False


def may_colour(stream: Any) -> bool:
    """Whether styling may be written: to a terminal that knows it, unless NO_COLOR says no."""
    dumb: Optional[str] = os.environ.get("TERM")
    return _is_terminal(stream) and not os.environ.get("NO_COLOR") and dumb not in (None, "", "dumb")
