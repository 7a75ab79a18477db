"""Patterns of `*` and `?` that take time in proportion to the text, whatever they are.

It knows no file. Each piece between two `*` is a regular expression without a quantifier, and the
leftmost place of each piece is the right one, so that nothing is ever tried again.
"""

import re
from typing import Optional, Pattern, Tuple

import attrs

__all__ = ["Wildcard"]


@attrs.frozen(kw_only=True)
class Wildcard:
    """A pattern: `*` stands for any run of characters, `?` for one; all else for itself."""

    pieces: Tuple[Pattern[str], ...]
    last: int  # the width of the last piece

    @classmethod
    def of(cls, text: str, *, ignore_case: bool = False) -> "Wildcard":
        """The pattern that `text` is."""
        words = text.split("*")
        return cls(pieces=tuple(_piece(one, ignore_case) for one in words), last=len(words[-1]))

    @classmethod
    def literal(cls, text: str, *, ignore_case: bool = False) -> "Wildcard":
        """The pattern in which `*` and `?` stand for themselves too."""
        pattern = re.compile(re.escape(text), re.IGNORECASE if ignore_case else 0)
        return cls(pieces=(pattern,), last=len(text))

    def find(self, text: str) -> Optional[int]:
        """Where it first occurs in `text`, None if it doesn't."""
        first: Optional[int] = None
        at = 0
        for piece in self.pieces:
            match = piece.search(text, at)
            if match is None:
                return None
            first, at = (match.start() if first is None else first), match.end()
        return first

    def matches(self, text: str) -> bool:
        """Whether it is the whole of `text`."""
        if len(self.pieces) == 1:
            return self.pieces[0].fullmatch(text) is not None
        match = self.pieces[0].match(text)
        if match is None:
            return False
        at = match.end()
        for piece in self.pieces[1:-1]:
            match = piece.search(text, at)
            if match is None:
                return False
            at = match.end()
        # The last piece stands at the end, and not before what the others took.
        start = len(text) - self.last
        return start >= at and self.pieces[-1].fullmatch(text, start) is not None


def _piece(text: str, ignore_case: bool) -> Pattern[str]:
    pattern = "".join("." if char == "?" else re.escape(char) for char in text)
    return re.compile(pattern, re.DOTALL | (re.IGNORECASE if ignore_case else 0))
