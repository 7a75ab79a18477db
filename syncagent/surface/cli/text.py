"""What may be shown: text that can do nothing to a terminal, and JSON that can't either.

Models, tools, ids and errors are strangers. Every human output path goes through `printable`.
"""

import json
import re
import time
from typing import Any

__all__ = ["json_line", "one_line", "printable", "shortened", "when"]

# C0 but tab and line end, DEL, C1, what turns the direction of writing, the line ends of Unicode, and
# half surrogate pairs, which can't be encoded.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    r"""The text with each control character as its escape, such as `\x1b`; tabs and line ends stay.

    A carriage return stays as part of a line end only, where it does nothing, and is left out.
    """
    return _UNSAFE.sub(_escape, text.replace("\r\n", "\n"))


def _escape(match: "re.Match[str]") -> str:
    code = ord(match.group())
    if code == 0x0D:
        return "\\r"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def one_line(text: str, width: int = 200) -> str:
    """The text as one printable line: white space in runs of one blank, cut at `width` characters."""
    # Cut twice: what is long is not worth escaping as a whole.
    line = printable(" ".join(text[: 4 * width].split()))
    return line if len(line) <= width and len(text) <= 4 * width else line[: width - 1] + "…"


def shortened(text: str, *, lines: int = 12, width: int = 1200) -> str:
    """The beginning of a printable text, and how much was left out."""
    text = text.rstrip("\n")
    kept = "\n".join(text[:width].split("\n")[:lines])
    left = len(text) - len(kept)
    return printable(kept) + (f"\n… ({left} more characters)" if left else "")


def json_line(value: Any, *, ascii_only: bool = False) -> str:
    """The value as one line of JSON, its control characters escaped the way JSON does it."""
    text = json.dumps(value, ensure_ascii=ascii_only, allow_nan=False)
    return _UNSAFE.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


def when(milliseconds: int) -> str:
    """A time of the log as local time."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(milliseconds / 1000))
    except (ValueError, OverflowError, OSError):  # no year that a calendar has
        return f"{milliseconds} ms"
