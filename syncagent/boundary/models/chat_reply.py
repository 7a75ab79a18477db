"""What Chat Completions answers, as neutral chunks. Pure: JSON values in, chunks out.

Written for the dialect as it is spoken, by many servers: what is missing, null or of a wrong type
is passed over, and only an ending that is missing or unknown is a failure.
"""

import json
from typing import Any, Dict, FrozenSet, Iterable, Iterator, List, Mapping, Optional, Tuple

from syncagent.boundary.models.assemble import CallPlaces
from syncagent.boundary.models.protocol import Chunk
from syncagent.errors import ModelError

__all__ = ["ChatReply"]

#: How servers of the dialect say that an answer is whole, or was cut by the output limit.
_FINISHES = {
    "stop": "stop",
    "eos": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "length": "max_tokens",
    "max_tokens": "max_tokens",
    "model_length": "max_tokens",
    "tool_calls": "tool_calls",
    "tool_use": "tool_calls",
    "function_call": "tool_calls",
}

#: And that it failed: code, whether to try again, in words.
_FAILURES = {
    "content_filter": ("content_filter", False, "the provider's content filter cut the answer off"),
    "safety": ("content_filter", False, "the provider's content filter cut the answer off"),
    "error": ("server_error", True, "the provider ended the answer with an error"),
    "abort": ("provider_aborted", True, "the provider aborted the answer by itself"),
    "aborted": ("provider_aborted", True, "the provider aborted the answer by itself"),
    "cancelled": ("provider_aborted", True, "the provider aborted the answer by itself"),
    "insufficient_system_resource": ("overloaded", True, "the provider ran out of resources"),
}


class ChatReply:
    """The answer to one attempt: `feed` it each JSON object, and `end` it."""

    def __init__(self) -> None:
        self._places = CallPlaces()
        self._held: Dict[Tuple[str, int], str] = {}
        self._usage: Dict[str, int] = {}
        self._reason: Optional[str] = None
        self._modern = False  # a piece of tool_calls has come

    @property
    def finished(self) -> bool:
        """Whether the provider has said how the answer finished; only usage may still come."""
        return self._reason is not None

    def feed(self, value: Mapping[str, Any]) -> Iterable[Chunk]:
        """What one object of the stream says, or the single object of a whole answer."""
        text = _plain_text(value)
        return (Chunk(text=text),) if text is not None and not self._held else self._feed(value)

    def _feed(self, value: Mapping[str, Any]) -> Iterator[Chunk]:
        for choice in _dicts(value.get("choices")):
            if choice.get("index") in (None, 0):
                yield from self._choice(choice)
        usage = _usage(value.get("usage"))
        if usage and usage != self._usage:  # some servers repeat it with every object
            self._usage = usage
            yield Chunk(usage=usage)

    def end(self) -> Iterator[Chunk]:
        """Yield the last chunk. Raises `ModelError` when the answer is no whole one."""
        for (kind, index), text in self._held.items():
            yield _chunk(kind, index, "\ufffd" * len(text))
        reason = self._reason
        if reason is None:
            why = "the answer ended without a finish reason: it is not whole"
            raise ModelError(why, code="truncated", retryable=True)
        if reason in _FAILURES:
            code, retryable, why = _FAILURES[reason]
            raise ModelError(why, code=code, retryable=retryable)
        if reason not in _FINISHES:
            # An unknown ending is a failure, never a success.
            raise ModelError(f"the answer ended with an unknown finish reason, {reason}", code="bad_response")
        finish = _FINISHES[reason]
        if finish != "max_tokens":  # many servers say "stop" where they mean their calls
            finish = "tool_calls" if self._places.calls else "stop"
        yield Chunk(finish=finish)

    def _choice(self, choice: Mapping[str, Any]) -> Iterator[Chunk]:
        delta, whole = choice.get("delta"), choice.get("message")
        said = delta if isinstance(delta, dict) else whole if isinstance(whole, dict) else {}
        for name in ("reasoning_content", "reasoning"):
            if isinstance(said.get(name), str) and said[name]:
                yield from self._text("reasoning", said[name])
                break  # a server that sends both sends the same twice
        yield from self._content(said.get("content"))
        yield from self._text("text", said.get("refusal"))
        entries = _dicts(said.get("tool_calls"))
        self._modern = self._modern or bool(entries)
        for number, entry in enumerate(entries):
            yield from self._call(entry, number if said is whole else None)
        # The form that came before tool_calls. Some servers send each piece in both forms.
        if isinstance(said.get("function_call"), dict) and not self._modern:
            yield from self._call({"function": said["function_call"]}, 0)
        reason = choice.get("finish_reason")
        if isinstance(reason, str) and reason:
            self._reason = reason.lower()

    def _content(self, content: Any) -> Iterator[Chunk]:
        """Text, or a list of parts, where some servers put their reasoning too."""
        if isinstance(content, str):
            yield from self._text("text", content)
        for part in _dicts(content):
            if part.get("type") == "thinking":
                for inner in _dicts(part.get("thinking")):
                    yield from self._text("reasoning", inner.get("text"))
            else:
                yield from self._text("text", part.get("text"))

    def _text(self, kind: str, text: Any) -> Iterator[Chunk]:
        whole = self._join(kind, 0, text) if isinstance(text, str) else ""
        if whole:
            yield Chunk(kind=kind, text=whole)

    def _call(self, entry: Mapping[str, Any], number: Optional[int]) -> Iterator[Chunk]:
        function = entry.get("function")
        function = function if isinstance(function, dict) else {}
        index, call_id, name = entry.get("index"), entry.get("id"), function.get("name")
        index = index if type(index) is int and index >= 0 else number
        call_id = str(call_id) if isinstance(call_id, (str, int)) else ""
        name = name if isinstance(name, str) else ""
        arguments = function.get("arguments")
        if isinstance(arguments, (dict, list)):
            arguments = json.dumps(arguments)
        arguments = arguments if isinstance(arguments, str) else ""
        known = len(self._places.calls)
        place = self._places.add(index=index, id=call_id, name=name, text=arguments)
        text = self._join("tool_call", place, arguments)
        if text or call_id or name or len(self._places.calls) > known:
            yield Chunk(kind="tool_call", index=place, id=call_id or None, name=name or None, text=text)

    def _join(self, kind: str, index: int, text: str) -> str:
        """The text without half characters.

        A character beyond U+FFFF is two escapes in JSON, and some servers cut between them. The
        first half is held until the second one comes; a half that is alone becomes U+FFFD.
        """
        held = self._held.pop((kind, index), "") if text else ""
        text = held + text
        try:
            text.encode()
            return text
        except UnicodeEncodeError:
            if "\ud800" <= text[-1] <= "\udbff":
                self._held[kind, index] = text[-1]
                text = text[:-1]
            return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


#: What a delta of nothing but text may have beside it.
_BESIDE: FrozenSet[str] = frozenset({"content", "role"})


def _plain_text(value: Mapping[str, Any]) -> Optional[str]:
    """The text of an object that says nothing else, which most of a stream are; None for any other."""
    choices = value.get("choices")
    if type(choices) is not list or len(choices) != 1 or value.get("usage"):
        return None
    choice = choices[0]
    if type(choice) is not dict or choice.get("finish_reason") or choice.get("index") not in (None, 0):
        return None
    delta = choice.get("delta")
    if type(delta) is not dict or not _BESIDE.issuperset(delta):
        return None
    text = delta.get("content")
    return text if type(text) is str and text and _is_whole(text) else None


def _is_whole(text: str) -> bool:
    """Whether there is no half of a character in it."""
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def _chunk(kind: str, index: int, text: str) -> Chunk:
    return Chunk(kind=kind, text=text, index=index if kind == "tool_call" else None)


def _dicts(value: Any) -> List[Dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _usage(value: Any) -> Dict[str, int]:
    """The counts under our names; what a server doesn't count is not there."""
    if not isinstance(value, dict):
        return {}
    prompt, completion = value.get("prompt_tokens_details"), value.get("completion_tokens_details")
    found = {
        "input_tokens": value.get("prompt_tokens"),
        "output_tokens": value.get("completion_tokens"),
        "cached_tokens": prompt.get("cached_tokens") if isinstance(prompt, dict) else None,
        "reasoning_tokens": completion.get("reasoning_tokens") if isinstance(completion, dict) else None,
    }
    return {name: count for name, count in found.items() if type(count) is int and count >= 0}
