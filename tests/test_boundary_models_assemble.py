"""Blocks of a message from the chunks of a stream."""

import pytest

from syncagent.boundary.models.assemble import Assembly
from syncagent.boundary.models.protocol import Chunk


def assembled(*chunks):
    assembly = Assembly()
    for chunk in chunks:
        assembly.add(chunk)
    return assembly


def text(value):
    return Chunk(text=value)


def reasoning(value):
    return Chunk(kind="reasoning", text=value)


def part(value="", **more):
    return Chunk(kind="tool_call", text=value, **more)


def calls(assembly):
    return [(block["id"], block["name"], block["arguments"]) for block in assembly.blocks() if "id" in block]


def test_runs_of_one_kind_become_one_block_each():
    assembly = assembled(reasoning("a"), reasoning("b"), text("c"), text("d"), reasoning("e"))
    assert assembly.blocks() == [
        {"type": "reasoning", "text": "ab"},
        {"type": "text", "text": "cd"},
        {"type": "reasoning", "text": "e"},
    ]
    assert assembly.text == "cd"


def test_neither_an_empty_delta_nor_a_call_in_between_cuts_a_run():
    assembly = assembled(reasoning("a"), Chunk(usage={"input_tokens": 1}), reasoning("b"))
    assert assembly.blocks() == [{"type": "reasoning", "text": "ab"}]
    assembly = assembled(text("a"), part("{}", index=0, id="x", name="f"), text("b"))
    assert assembly.blocks(calls=False) == [{"type": "text", "text": "ab"}]


def test_a_block_of_white_space_is_left_out_and_shows_nothing():
    assembly = assembled(text(" \n"), reasoning("\t"), text("  "))
    assert not assembly.visible
    assert assembly.blocks() == []
    assembly.add(text("x "))
    assert assembly.visible
    assert assembly.blocks() == [{"type": "text", "text": "  x "}]


def test_a_call_alone_shows_nothing_and_is_a_block():
    assembly = assembled(part('{"a": 1}', index=0, id="x", name="f"))
    assert not assembly.visible
    assert assembly.blocks() == [{"type": "tool_call", "id": "x", "name": "f", "arguments": '{"a": 1}'}]
    assert assembly.blocks(calls=False) == []


def test_two_fragments_with_the_same_index_in_one_chunk_are_one_call():
    assembly = assembled(
        part(index=0, id="x", name="f"), part(' {"', index=0), part('a": ', index=0), part("1}", index=0)
    )
    assert calls(assembly) == [("x", "f", ' {"a": 1}')]


def test_interleaved_fragments_go_to_their_own_call_and_calls_stand_by_index():
    assembly = assembled(
        part(index=1, id="y", name="g"),
        part('{"b"', index=1),
        part('{"a"', index=0, id="x", name="f"),
        part(": 2}", index=1),
        part(": 1}", index=0),
    )
    assert calls(assembly) == [("x", "f", '{"a": 1}'), ("y", "g", '{"b": 2}')]


def test_a_fragment_without_index_continues_the_call_before_it():
    assembly = assembled(part(id="x", name="f"), part('{"a'), part('": 1}'))
    assert calls(assembly) == [("x", "f", '{"a": 1}')]


def test_a_name_begins_a_new_call_where_there_is_no_index():
    assembly = assembled(part("{}", id="x", name="f"), part("{}", id="y", name="f"), part("{}", name="f"))
    assert calls(assembly) == [("x", "f", "{}"), ("y", "f", "{}"), ("call_1", "f", "{}")]


def test_id_and_name_repeated_with_every_fragment_are_one_call_until_it_is_complete():
    again = {"id": "x", "name": "f"}
    assembly = assembled(part('{"a"', **again), part(": 1}", **again), part("{}", **again))
    assert calls(assembly) == [("x", "f", '{"a": 1}'), ("call_1", "f", "{}")]


def test_an_id_finds_its_call_where_there_is_no_index():
    assembly = assembled(
        part("[", id="x", name="f"), part("(", id="y", name="g"), part("]", id="x"), part(")", id="y")
    )
    assert calls(assembly) == [("x", "f", "[]"), ("y", "g", "()")]


def test_an_id_before_its_name_is_the_same_call():
    assembly = assembled(part(id="x"), part("{", name="f"), part("}"))
    assert calls(assembly) == [("x", "f", "{}")]


def test_another_id_and_name_at_a_taken_index_are_another_call():
    assembly = assembled(
        part("{}", index=0, id="x", name="f"), part('{"b"', index=0, id="y", name="f"), part(":1}", index=0)
    )
    assert calls(assembly) == [("x", "f", "{}"), ("y", "f", '{"b":1}')]


def test_an_id_or_name_that_is_repeated_at_its_index_is_the_same_call():
    assembly = assembled(
        part("{", index=0, id="x", name="f"), part("", index=0, id="x", name="f"), part("}", index=0, id="z")
    )
    assert calls(assembly) == [("x", "f", "{}")]


@pytest.mark.parametrize(
    "given, chosen",
    [
        (["X", "X"], ["X", "call_1"]),
        (["", ""], ["call_1", "call_2"]),
        ([None, "call_1"], ["call_2", "call_1"]),
        (["call_1", "call_1", ""], ["call_1", "call_2", "call_3"]),
        (["a", "b"], ["a", "b"]),
    ],
)
def test_each_call_has_an_id_of_its_own_the_providers_where_it_can(given, chosen):
    chunks = [part("{}", index=place, id=call_id, name="f") for place, call_id in enumerate(given)]
    assert [block["id"] for block in assembled(*chunks).blocks()] == chosen


def test_arguments_stay_the_raw_text_that_the_model_wrote():
    for raw in ["", "  ", '{"city": "San Fra', '[1]', '{"a":1}{"b":2}']:
        assert calls(assembled(part(raw, index=0, id="x", name="f"))) == [("x", "f", raw)]


def test_usage_keeps_the_last_count_of_each_kind():
    assembly = assembled(
        Chunk(text="a", usage={"input_tokens": 5, "output_tokens": 1}), Chunk(usage={"output_tokens": 3})
    )
    assert assembly.usage == {"input_tokens": 5, "output_tokens": 3}


def test_the_finish_is_the_last_chunks():
    assembly = assembled(text("a"))
    assert assembly.finish is None
    assembly.add(Chunk(finish="max_tokens"))
    assert assembly.finish == "max_tokens"


def test_many_chunks_are_assembled_in_linear_time():
    assembly = Assembly()
    for _ in range(100_000):
        assembly.add(text("word "))
    assert len(assembly.blocks()[0]["text"]) == 500_000


def test_incomplete_arguments_of_great_depth_are_no_crash():
    deep = "[" * 100_000
    assembly = assembled(part(deep, id="x", name="f"), part("]", id="x", name="f"))
    assert calls(assembly) == [("x", "f", deep + "]")]
