"""Chunks in, the blocks of one message out. It knows the neutral chunk, no wire format and no event.

One `Assembly` belongs to one attempt: another attempt begins another one, so nothing that a failed
attempt has streamed can get into the message of the next.
"""

import json
from typing import Any, Dict, List, Optional, Set

import attrs

from syncagent.boundary.models.protocol import Chunk
from syncagent.log.shown import Shown

__all__ = ["Assembly", "CallPlaces"]


@attrs.define
class _Call:
    """One tool call as far as it has arrived."""

    id: str = ""
    name: str = ""
    pieces: List[str] = attrs.field(factory=list)

    @property
    def arguments(self) -> str:
        return "".join(self.pieces)


class CallPlaces:
    """Finds out which call of a step a fragment belongs to, and keeps the calls together.

    The index that the provider sends decides. Two habits of providers are put right: a fragment
    without an index belongs to the call before it unless it begins a new one, and a fragment that
    brings another id and a name of its own is another call even where its index is taken.
    """

    def __init__(self) -> None:
        self.calls: Dict[int, _Call] = {}
        # What the provider numbers so, and where that is kept: they differ once an index was reused.
        self._moved: Dict[int, int] = {}
        self._last: Optional[int] = None

    def add(self, *, index: Optional[int], id: Optional[str], name: Optional[str], text: str) -> int:
        """Add a fragment to its call and return the call's logical index."""
        place = self._place(index, id or "", name or "")
        call = self.calls.setdefault(place, _Call())
        call.id = call.id or id or ""
        call.name = call.name or name or ""
        if text:
            call.pieces.append(text)
        self._last = place
        return place

    def in_order(self) -> List[_Call]:
        """The calls by logical index."""
        return [self.calls[place] for place in sorted(self.calls)]

    def _place(self, index: Optional[int], id: str, name: str) -> int:
        if index is None:
            return self._place_without_index(id, name)
        place = self._moved.get(index, index)
        known = self.calls.get(place)
        if known is None:
            return place
        if id and name and known.id and known.name and id != known.id:
            place = self._moved[index] = self._free()
        return place

    def _place_without_index(self, id: str, name: str) -> int:
        if self._last is None:
            return self._free()
        last = self.calls[self._last]
        if not name:
            same = [place for place, call in self.calls.items() if id and call.id == id]
            return same[-1] if same else self._free() if id and last.id else self._last
        if not last.name and not last.pieces and id in ("", last.id):
            return self._last
        # Some providers repeat id and name with every fragment, others send two whole calls with
        # one id: the second call can only begin when the first one's arguments are complete.
        if id and id == last.id and name == last.name and not _complete(last.arguments):
            return self._last
        return self._free()

    def _free(self) -> int:
        return max(self.calls, default=-1) + 1


class Assembly:
    """The message of one attempt, as far as it has been streamed.

    `usage` is what the provider has counted so far (`{}` if nothing), `finish` how the stream ended,
    or None.
    """

    def __init__(self) -> None:
        self.usage: Dict[str, Any] = {}
        self.finish: Optional[str] = None
        self._shown = Shown()
        self._calls = CallPlaces()

    def add(self, chunk: Chunk) -> None:
        """Take the next chunk. Counts of `usage` are totals: the last one of a kind stays."""
        if chunk.usage is not None:
            self.usage.update(chunk.usage)
        if chunk.finish is not None:
            self.finish = chunk.finish
        if chunk.kind == "tool_call":
            self._calls.add(index=chunk.index, id=chunk.id, name=chunk.name, text=chunk.text)
        else:
            self._shown.add(chunk.kind, chunk.text)

    @property
    def visible(self) -> bool:
        """Whether text or reasoning with a character that is not white space has arrived."""
        return self._shown.visible

    @property
    def text(self) -> str:
        """The text that has arrived, without reasoning."""
        return self._shown.text

    def blocks(self, *, calls: bool = True) -> List[Dict[str, Any]]:
        """The message's content: text and reasoning as they came, then the tool calls by index.

        White space alone is left out, see `Shown.blocks`. Each call has an id that is unique in the
        step. With `calls=False` the calls are left out, for an answer that was cut.
        """
        return self._shown.blocks() + (self._call_blocks() if calls else [])

    def _call_blocks(self) -> List[Dict[str, Any]]:
        calls = self._calls.in_order()
        theirs = {call.id for call in calls}
        taken: Set[str] = set()
        found: List[Dict[str, Any]] = []
        for call in calls:
            chosen = call.id if call.id and call.id not in taken else _own_id(taken | theirs)
            taken.add(chosen)
            found.append(
                {"type": "tool_call", "id": chosen, "name": call.name, "arguments": call.arguments}
            )
        return found


def _own_id(taken: Set[str]) -> str:
    """The first `call_<n>`, from 1, that is not taken."""
    number = 1
    while f"call_{number}" in taken:
        number += 1
    return f"call_{number}"


def _complete(arguments: str) -> bool:
    try:
        json.loads(arguments)
    except (ValueError, RecursionError):
        return False
    return True
