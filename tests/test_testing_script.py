"""The script that both scripted models play."""

import pytest

from syncagent.boundary.models.protocol import Chunk
from syncagent.testing import call, headers, hold, reasoning, status, text, usage
from syncagent.testing.script import Script


def test_entries_are_handed_out_in_order_until_none_is_left():
    script = Script(["a", ["b", text("c")], lambda request: lambda request: request])
    first, second, third = script.next(None), script.next(None), script.next("asked")
    assert (first, second[0], third) == (["a"], "b", ["asked"])
    assert script.next(None) is None


def test_one_item_or_exception_is_an_entry():
    failure = KeyError("x")
    script = Script([hold("p"), failure, Chunk(text="a")])
    assert script.next(None) == [hold("p")]
    assert script.next(None) == [failure]
    assert script.next(None) == [Chunk(text="a")]


@pytest.mark.parametrize("given", ["text", text("a"), Chunk(text="a")])
def test_what_is_no_list_of_entries_is_refused(given):
    with pytest.raises(TypeError):
        Script(given)


def test_words_become_chunks_and_the_rest_does_not():
    script = Script([])
    assert script.chunks("a", 0) == [Chunk(text="a")]
    assert script.chunks(text("a", "b"), 0) == [Chunk(text="a"), Chunk(text="b")]
    assert script.chunks(reasoning("a"), 0) == [Chunk(kind="reasoning", text="a")]
    assert script.chunks(usage(1, 2), 0) is None
    assert script.chunks(KeyError(), 0) is None


def test_a_call_streams_its_head_and_its_arguments():
    script = Script([])
    assert script.chunks(call("f", {"a": "é"}), 2) == [
        Chunk(kind="tool_call", index=2, id="call_1", name="f"),
        Chunk(kind="tool_call", index=2, text='{"a": "\\u00e9"}'),
    ]
    assert [chunk.id for chunk in script.chunks(call("f", "", id=""), 0)] == [""]
    assert script.chunks(call("f"), 0)[0].id == "call_2"


def test_a_point_is_the_same_for_the_script_and_the_test():
    script = Script([])
    assert script.point("p") is script.point("p")
    script.release_all()
    assert script.point("p").released


def test_headers_are_written_as_arguments():
    assert headers(x_request_id="7").values == {"x-request-id": "7"}


def test_a_status_has_an_error_body_unless_given_one():
    assert status(500, "no").values["body"]["error"]["message"] == "no"
    assert status(500, body="<p>").values["body"] == "<p>"
