"""The blocks of a message, from what an attempt has shown."""

import pytest
from logs import Log, reasoning, text

from syncagent.boundary.models.assemble import Assembly
from syncagent.boundary.models.protocol import Chunk
from syncagent.log import check, closers
from syncagent.log.shown import Shown

#: What was shown, and the blocks that it makes.
BLOCKS = {
    "nothing": ([], []),
    "pieces of one kind": ([text("a"), text(" "), text("b")], [text("a b")]),
    "two kinds": ([reasoning("a"), reasoning("b"), text("c"), reasoning("d")],
                  [reasoning("ab"), text("c"), reasoning("d")]),
    "white space alone": ([text(" \n"), reasoning("\t"), text("  ")], []),
    "white space at both ends of a block": ([text("\n"), text("a"), text(" ")], [text("\na ")]),
    "white space before another kind":
        ([text("\n\n"), reasoning("a"), text("b")], [reasoning("a"), text("b")]),
    "white space between two of one kind": ([text("a"), reasoning("\n"), text("b")], [text("ab")]),
    "several such": ([text("a"), reasoning(" "), text("b"), reasoning("c"), text(" "), reasoning("d")],
                     [text("ab"), reasoning("cd")]),
    "pieces of nothing": ([reasoning("a"), text(""), reasoning("b")], [reasoning("ab")]),
}

each = pytest.mark.parametrize("pieces, blocks", BLOCKS.values(), ids=BLOCKS)


@each
def test_blocks_leave_white_space_out_and_join_what_then_stands_side_by_side(pieces, blocks):
    shown = Shown()
    for piece in pieces:
        shown.add(piece["type"], piece["text"])
    assert shown.blocks() == blocks
    assert shown.visible is bool(blocks)
    assert shown.text == "".join(piece["text"] for piece in pieces if piece["type"] == "text")


@each
def test_an_answer_that_is_committed_and_one_that_is_recovered_have_the_same_blocks(pieces, blocks):
    log, assembly = Log().asking(), Assembly()
    for piece in pieces:
        log.chunk(piece["text"], piece["type"])
        assembly.add(Chunk(kind=piece["type"], text=piece["text"]))
    messages = [e.body.message for e in closers(check(log.events)) if e.type == "assistant/message"]
    assert [message.content for message in messages] == [blocks] * bool(blocks)
    assert (assembly.blocks(), assembly.visible) == (blocks, bool(blocks))


def test_what_is_visible_stays_so():
    shown = Shown()
    shown.add("text", " ")
    assert not shown.visible
    shown.add("text", "a")
    shown.add("text", " ")
    assert shown.visible


def test_blocks_are_made_anew_each_time():
    shown = Shown()
    shown.add("text", "a")
    shown.blocks()[0]["text"] = "b"
    assert shown.blocks() == [text("a")]
