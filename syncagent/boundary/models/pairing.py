"""Is a transcript one that a strict provider accepts? Pure; it knows messages and no wire format."""

from typing import Any, List, Sequence

from syncagent.errors import ModelError
from syncagent.log import Message
from syncagent.log.fields import Malformed, blocks

__all__ = ["check_pairing"]


#: The blocks that stand in messages of one role only.
_HOME = {"tool_call": "assistant", "tool_result": "tool"}


def check_pairing(messages: Sequence[Message]) -> None:
    """Check that calls and results pair up, so that a bad transcript fails here and says where.

    The first message is a user's. Each tool call of an assistant message has one tool message,
    and these follow the assistant message at once, in the order of the calls; no result stands
    anywhere else. The same call id in another step is another call.

    Raises `ModelError` with the code "bad_request", naming the message by its place, from 0, also
    for a message that isn't made as `Message` says: a hook may have put in whatever it likes.
    """
    if not messages:
        raise _refusal(0, "there is no message")
    open_calls: List[str] = []
    for place, message in enumerate(messages):
        _check_form(place, message)
        if place == 0 and message.role != "user":
            raise _refusal(0, f"the first message must be a user's, not one of role {message.role!r}")
        if message.role == "tool":
            _close_call(place, message, open_calls)
            continue
        if open_calls:
            raise _refusal(place, f"call {open_calls[0]!r} has no result before this {message.role} message")
        open_calls = _calls_of(place, message)
    if open_calls:
        raise _refusal(len(messages), f"the transcript ends, and call {open_calls[0]!r} has no result")


def _check_form(place: int, message: Any) -> None:
    if not isinstance(message, Message):
        raise _refusal(place, f"it is a {type(message).__name__}, not a Message")
    if message.role not in ("user", "assistant", "tool"):
        raise _refusal(place, f"no message has the role {message.role!r}")
    try:
        for block in blocks(message.content):
            home = _HOME.get(block["type"], message.role)
            if message.role != home:
                raise _refusal(place, f"a {block['type']} block stands in a message of role {message.role!r}")
            if block["type"] == "tool_result":
                blocks(block.get("content"))
    except Malformed as exc:
        raise _refusal(place, f"its content {exc}") from None


def _calls_of(place: int, message: Message) -> List[str]:
    ids: List[str] = [call["id"] for call in message.calls]
    for number, call_id in enumerate(ids):
        if not call_id:
            raise _refusal(place, f"call {number} of this assistant message has no id")
        if call_id in ids[:number]:
            raise _refusal(place, f"two calls of this assistant message have the id {call_id!r}")
    return ids


def _close_call(place: int, message: Message, open_calls: List[str]) -> None:
    """Take the call that this tool message answers off the front of `open_calls`."""
    kinds = [block["type"] for block in message.content]
    if kinds != ["tool_result"]:
        shown = ", ".join(kinds) or "nothing"
        raise _refusal(place, f"a tool message holds one tool_result and no more, this one holds {shown}")
    call_id = message.content[0].get("call_id")
    if not open_calls:
        raise _refusal(place, f"this result is for call {call_id!r}, and no call is open here")
    if call_id != open_calls[0]:
        why = f"this result is for call {call_id!r}, but the next open call is {open_calls[0]!r}"
        raise _refusal(place, why)
    del open_calls[0]


def _refusal(place: int, why: str) -> ModelError:
    return ModelError(f"message {place} of the request: {why}", code="bad_request")
