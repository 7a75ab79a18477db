"""Is a transcript one that a strict provider accepts? Pure; it knows messages and no wire format."""

from typing import List, Sequence

from syncagent.errors import ModelError
from syncagent.log import Message

__all__ = ["check_pairing"]


def check_pairing(messages: Sequence[Message]) -> None:
    """Check that calls and results pair up, so that a bad transcript fails here and says where.

    The first message is a user's. Each tool call of an assistant message has one tool message,
    and these follow the assistant message at once, in the order of the calls; no tool message
    stands anywhere else. The same call id in another step is another call.

    Raises `ModelError` with the code "bad_request", naming the message by its place, from 0.
    """
    if not messages:
        raise _refusal(0, "there is no message")
    if messages[0].role != "user":
        raise _refusal(0, f"the first message must be a user's, not one of role {messages[0].role!r}")
    open_calls: List[str] = []
    for place, message in enumerate(messages):
        if message.role == "tool":
            _close_call(place, message, open_calls)
            continue
        if open_calls:
            raise _refusal(place, f"call {open_calls[0]!r} has no result before this {message.role} message")
        if message.role == "assistant":
            open_calls = _calls_of(place, message)
        elif message.role != "user":
            raise _refusal(place, f"no message has the role {message.role!r}")
    if open_calls:
        raise _refusal(len(messages), f"the transcript ends, and call {open_calls[0]!r} has no result")


def _calls_of(place: int, message: Message) -> List[str]:
    ids: List[str] = [block["id"] for block in message.content if block["type"] == "tool_call"]
    for number, call_id in enumerate(ids):
        if not call_id:
            raise _refusal(place, f"call {number} of this assistant message has no id")
        if call_id in ids[:number]:
            raise _refusal(place, f"two calls of this assistant message have the id {call_id!r}")
    return ids


def _close_call(place: int, message: Message, open_calls: List[str]) -> None:
    """Take the call that this tool message answers off the front of `open_calls`."""
    results = [block for block in message.content if block["type"] == "tool_result"]
    if len(results) != 1:
        raise _refusal(place, f"a tool message holds one tool_result, this one holds {len(results)}")
    call_id = results[0]["call_id"]
    if not open_calls:
        raise _refusal(place, f"this result is for call {call_id!r}, and no call is open here")
    if call_id != open_calls[0]:
        why = f"this result is for call {call_id!r}, but the next open call is {open_calls[0]!r}"
        raise _refusal(place, why)
    del open_calls[0]


def _refusal(place: int, why: str) -> ModelError:
    return ModelError(f"message {place} of the request: {why}", code="bad_request")
