"""Objects of a Chat Completions answer as chunks."""

import pytest

from syncagent.boundary.models.assemble import Assembly
from syncagent.boundary.models.chat_reply import ChatReply
from syncagent.errors import ModelError


def delta(finish=None, **more):
    return {"choices": [{"index": 0, "delta": more, "finish_reason": finish}]}


def part(index=None, call_id=None, name=None, arguments=None):
    entry = {"index": index, "id": call_id, "function": {"name": name, "arguments": arguments}}
    return {name: value for name, value in entry.items() if value is not None}


def fed(*objects):
    reply = ChatReply()
    return [chunk for value in objects for chunk in reply.feed(value)], reply


def assembled(*objects):
    chunks, reply = fed(*objects)
    assembly = Assembly()
    for chunk in [*chunks, *reply.end()]:
        assembly.add(chunk)
    return assembly


def calls(assembly):
    return [(block["id"], block["name"], block["arguments"]) for block in assembly.blocks() if "id" in block]


STOP = delta("stop")


def test_text_and_reasoning_under_each_of_its_names():
    for name in ("reasoning", "reasoning_content"):
        assembly = assembled(delta(**{name: "hm"}), delta(content="a"), delta(content="b"), STOP)
        assert assembly.blocks() == [{"type": "reasoning", "text": "hm"}, {"type": "text", "text": "ab"}]


def test_reasoning_that_is_sent_under_both_names_counts_once():
    assert assembled(delta(reasoning="x", reasoning_content="x"), STOP).blocks()[0]["text"] == "x"


def test_content_as_a_list_of_parts():
    parts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
        {"type": "text", "text": "a"},
    ]
    assert assembled(delta(content=parts), STOP).blocks() == [
        {"type": "reasoning", "text": "hm"},
        {"type": "text", "text": "a"},
    ]


def test_a_refusal_is_text():
    assert assembled(delta(refusal="I won't."), STOP).text == "I won't."


def test_empty_choices_first_and_last_are_skipped_and_usage_is_taken():
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 5},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    first, last = {"choices": [], "prompt_filter_results": [{}]}, {"choices": [], "usage": usage}
    assembly = assembled(first, delta(content="a"), STOP, last)
    assert assembly.text == "a"
    assert assembly.usage == {
        "input_tokens": 9,
        "output_tokens": 4,
        "cached_tokens": 5,
        "reasoning_tokens": 2,
    }


def test_usage_that_is_repeated_with_every_object_is_passed_on_when_it_changes():
    usage = {"prompt_tokens": 9, "completion_tokens": 1, "prompt_tokens_details": None}
    again = {**delta(content="a"), "usage": usage}
    chunks, _ = fed(again, again, {**again, "usage": {**usage, "completion_tokens": 2}})
    found = [chunk.usage["output_tokens"] for chunk in chunks if chunk.usage]
    assert found == [1, 2]


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"choices": None, "usage": None},
        {"choices": [None, 3]},
        {"choices": [{"index": 1, "delta": {"content": "other"}}]},
        {"choices": [{"delta": None}]},
        delta(content=None, tool_calls=None, function_call=None, reasoning={}),
        delta(content="", tool_calls=[], refusal=None),
        {"choices": [], "usage": {"prompt_tokens": "9", "completion_tokens": True}},
        {"choices": [], "usage": {"prompt_tokens": -1, "prompt_tokens_details": 3}},
    ],
)
def test_what_is_missing_null_or_of_a_wrong_type_is_passed_over(value):
    chunks, reply = fed(value)
    assert chunks == []
    assert not reply.finished


def test_two_entries_with_one_index_in_one_object_are_one_call():
    first = delta(tool_calls=[part(0, "x", "f"), part(0, None, None, ' {"')])
    assembly = assembled(first, delta(tool_calls=[part(0, None, None, 'a": 1}')]), delta("tool_calls"))
    assert calls(assembly) == [("x", "f", ' {"a": 1}')]


def test_interleaved_fragments_of_two_calls():
    objects = [delta(tool_calls=[part(0, "x", "f")]), delta(tool_calls=[part(1, "y", "g")])]
    for letters in ("{", '"a"', ":1", "}"):
        objects += [delta(tool_calls=[part(index, None, None, letters)]) for index in (0, 1)]
    assembly = assembled(*objects, delta("tool_calls"))
    assert calls(assembly) == [("x", "f", '{"a":1}'), ("y", "g", '{"a":1}')]


def test_whole_calls_without_an_index():
    entries = [part(None, "x", "f", "{}"), part(None, "y", "f", "{}")]
    assembly = assembled(delta(tool_calls=entries), delta("stop"))
    assert calls(assembly) == [("x", "f", "{}"), ("y", "f", "{}")]
    assert assembly.finish == "tool_calls"


def test_the_chunks_have_the_index_where_the_call_is_kept():
    same = [part(0, "x", "f", "{}"), part(0, "y", "f", "{"), part(0, None, None, "}")]
    chunks, _ = fed(delta(tool_calls=same))
    assert [(chunk.index, chunk.id, chunk.text) for chunk in chunks] == [
        (0, "x", "{}"),
        (1, "y", "{"),
        (1, None, "}"),
    ]


@pytest.mark.parametrize("arguments", ["", "  ", None, "{}"])
def test_arguments_that_are_empty_blank_null_or_absent(arguments):
    assembly = assembled(delta(tool_calls=[part(0, "x", "f", arguments)]), delta("tool_calls"))
    assert calls(assembly) == [("x", "f", arguments or "")]


def test_arguments_that_are_an_object_and_ids_that_are_a_number_become_text():
    assembly = assembled(delta(tool_calls=[part(0, 7, "f", {"a": 1})]), delta("tool_calls"))
    assert calls(assembly) == [("7", "f", '{"a": 1}')]


def test_the_form_that_came_before_tool_calls():
    first = delta(function_call={"name": "f", "arguments": '{"a"'})
    assembly = assembled(first, delta(function_call={"arguments": ": 1}"}), delta("function_call"))
    assert calls(assembly) == [("call_1", "f", '{"a": 1}')]
    assert assembly.finish == "tool_calls"


def test_a_piece_that_comes_in_both_forms_is_taken_once():
    def both(name, arguments):
        entry = {"name": name, "arguments": arguments}
        return delta(tool_calls=[part(0, "x", name, arguments)], function_call=entry)

    assembly = assembled(both("f", '{"a"'), both("f", ": 1}"), delta("tool_calls"))
    assert calls(assembly) == [("x", "f", '{"a": 1}')]


def test_a_character_that_is_cut_in_two_is_joined_and_half_a_one_replaced():
    pieces = ["a\ud83d", "\ude00b", "\ude00\ud83dc\ud83d"]
    chunks, reply = fed(*[delta(content=piece) for piece in pieces])
    assert [chunk.text for chunk in chunks] == ["a", "\U0001f600b", "\ufffd\ufffdc"]
    list(reply.feed(STOP))
    assert [chunk.text for chunk in reply.end()] == ["\ufffd", ""]


def test_halves_of_different_streams_do_not_meet():
    chunks, _ = fed(
        delta(content="\ud83d", tool_calls=[part(0, "x", "f", "\ud83d"), part(1, "y", "f", "\ude00")]),
        delta(content="\ude00", tool_calls=[part(0, None, None, "\ude00")]),
    )
    assert [chunk.text for chunk in chunks] == ["", "\ufffd", "\U0001f600", "\U0001f600"]


@pytest.mark.parametrize(
    "word, finish",
    [
        ("stop", "stop"),
        ("STOP", "stop"),
        ("length", "max_tokens"),
        ("max_tokens", "max_tokens"),
        ("tool_calls", "stop"),
        ("function_call", "stop"),
    ],
)
def test_finish_reasons_without_calls(word, finish):
    assert assembled(delta(content="a"), delta(word)).finish == finish


@pytest.mark.parametrize(
    "word, finish", [("stop", "tool_calls"), ("tool_calls", "tool_calls"), ("length", "max_tokens")]
)
def test_finish_reasons_with_calls(word, finish):
    assert assembled(delta(tool_calls=[part(0, "x", "f", "{}")]), delta(word)).finish == finish


@pytest.mark.parametrize(
    "word, code, retryable",
    [
        (None, "truncated", True),
        ("", "truncated", True),
        ("content_filter", "content_filter", False),
        ("error", "server_error", True),
        ("abort", "provider_aborted", True),
        ("novelty", "bad_response", False),
    ],
)
def test_an_answer_that_is_not_whole_is_an_error(word, code, retryable):
    chunks, reply = fed(delta(content="a"), delta(word))
    assert [chunk.text for chunk in chunks] == ["a"]
    with pytest.raises(ModelError) as caught:
        list(reply.end())
    assert (caught.value.code, caught.value.retryable) == (code, retryable)


def test_a_whole_answer_is_read_like_a_stream_of_one():
    entries = [part(None, "x", "f", "{}"), part(None, "x", "f", "{}")]
    message = {"role": "assistant", "content": "a", "tool_calls": entries}
    assembly = assembled(
        {
            "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 2},
        }
    )
    assert assembly.text == "a"
    assert calls(assembly) == [("x", "f", "{}"), ("call_1", "f", "{}")]
    assert assembly.usage == {"input_tokens": 1, "output_tokens": 2}
