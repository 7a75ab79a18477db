"""What a model is to the runtime: requests, chunks, and the form in which the log keeps a chunk."""

import attrs
import pytest

from syncagent.boundary.models.protocol import Chunk, ModelRequest
from syncagent.testing import ScriptedModel


@pytest.mark.parametrize(
    "chunk, kept",
    [
        (Chunk(), {"kind": "text", "text": ""}),
        (Chunk(kind="reasoning", text="hm"), {"kind": "reasoning", "text": "hm"}),
        (
            Chunk(kind="tool_call", index=0, id="c1", name="bash", text='{"a'),
            {"kind": "tool_call", "text": '{"a', "index": 0, "id": "c1", "name": "bash"},
        ),
        (Chunk(usage={"input_tokens": 1}), {"kind": "text", "text": "", "usage": {"input_tokens": 1}}),
    ],
)
def test_the_log_keeps_what_a_chunk_has(chunk, kept):
    assert chunk.to_dict() == kept


def test_how_it_finished_is_no_part_of_what_the_log_keeps():
    assert Chunk(text="x", finish="stop").to_dict() == {"kind": "text", "text": "x"}


def test_the_log_keeps_a_copy_of_the_usage():
    usage = {"input_tokens": 1}
    kept = Chunk(usage=usage).to_dict()
    usage["input_tokens"] = 2
    assert kept["usage"] == {"input_tokens": 1}


def test_a_request_needs_only_its_messages():
    request = ModelRequest(messages=[])
    assert (request.system, list(request.tools), dict(request.params)) == ("", [], {})


def test_requests_and_chunks_do_not_change():
    for value, name in ((ModelRequest(messages=[]), "system"), (Chunk(), "text")):
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            setattr(value, name, "other")


def test_a_model_is_whatever_has_its_method():
    assert callable(ScriptedModel([]).stream)
