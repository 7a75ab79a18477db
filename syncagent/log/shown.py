"""What an attempt has shown so far, text and reasoning, and the blocks of a message that it makes.

One rule for the message that a turn commits and for the one that repair recovers. Pure; it knows
neither events nor calls.
"""

import itertools
from typing import Any, Dict, List, Tuple

import attrs

from syncagent.log.fields import is_visible

__all__ = ["Shown"]


@attrs.define
class Shown:
    """Text and reasoning as they were streamed.

    `visible` says whether a character that is not white space has come. Pieces are kept in lists:
    one growing string would cost quadratic time.
    """

    visible: bool = False
    _runs: List[Tuple[str, List[str]]] = attrs.field(factory=list)

    def add(self, kind: str, text: str) -> None:
        """Take the next piece, of the kind "text" or "reasoning"."""
        if not text:
            return
        if not self._runs or self._runs[-1][0] != kind:
            self._runs.append((kind, []))
        self._runs[-1][1].append(text)
        self.visible = self.visible or is_visible(text)

    @property
    def text(self) -> str:
        """All of the text, without reasoning."""
        return "".join(piece for kind, pieces in self._runs if kind == "text" for piece in pieces)

    def blocks(self) -> List[Dict[str, Any]]:
        """The blocks of a message, in the order in which they were shown.

        What is white space from one change of kind to the next is left out, and what then stands
        side by side and is of one kind is one block.
        """
        runs = [(kind, "".join(pieces)) for kind, pieces in self._runs]
        seen = [run for run in runs if is_visible(run[1])]
        return [
            {"type": kind, "text": "".join(text for _, text in group)}
            for kind, group in itertools.groupby(seen, key=lambda run: run[0])
        ]
