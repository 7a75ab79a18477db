"""A neutral request as the JSON of Chat Completions. Pure; it knows no answer and no network.

Blocks of reasoning are not sent back: the dialect has no place for them. A message that holds
nothing else is left out.
"""

import json
import re
from typing import Any, Dict, List, Mapping, Optional, Set

from syncagent.boundary.models.protocol import ModelRequest
from syncagent.errors import ModelError
from syncagent.log import Message

__all__ = ["RESERVED", "encode_request"]

#: What a request's own parts fill in, so that no parameter may.
RESERVED = frozenset({"messages", "model", "stream", "tools"})


def encode_request(request: ModelRequest, *, model: str, params: Mapping[str, Any]) -> bytes:
    """The body of the request, in UTF-8. `params` of the request go before these.

    A parameter that is None is left out, also one of those that are always sent, as in
    `{"stream_options": None}` for a server that doesn't know them. Raises `ModelError` with the
    code "bad_request" for what has no form on this wire.
    """
    given = {**params, **request.params}
    for name in sorted(RESERVED.intersection(given)):
        raise ModelError(f"{name!r} can't be given as a parameter", code="bad_request")
    body: Dict[str, Any] = {
        "model": model,
        "messages": _messages(request),
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": [{"type": "function", "function": dict(tool)} for tool in request.tools] or None,
        **given,
    }
    kept = {name: value for name, value in body.items() if value is not None}
    try:
        text = json.dumps(kept, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as exc:
        raise ModelError(f"the request is no JSON: {exc}", code="bad_request") from exc
    return _utf8(text)


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        # Lone surrogates, as in the name of a file that is no UTF-8. A provider answers 400 to them.
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()


def _messages(request: ModelRequest) -> List[Dict[str, Any]]:
    found: List[Dict[str, Any]] = []
    if request.system:
        found.append({"role": "system", "content": request.system})
    ids = _WireIds()
    for message in request.messages:
        if message.role == "user":
            found.append({"role": "user", "content": _text(message.content)})
        elif message.role == "tool":
            result = message.content[0]
            wire_id = ids.of_result(result["call_id"])
            found.append({"role": "tool", "tool_call_id": wire_id, "content": _text(result["content"])})
        else:
            answer = _answer(message, ids)
            if answer is not None:
                found.append(answer)
    return found


def _answer(message: Message, ids: "_WireIds") -> Optional[Dict[str, Any]]:
    calls = [block for block in message.content if block["type"] == "tool_call"]
    text = _text(message.content, besides=("tool_call", "reasoning"))
    if not calls:
        return {"role": "assistant", "content": text} if text else None
    # Not null beside calls, as the provider itself would: other servers of the dialect refuse that.
    answer: Dict[str, Any] = {"role": "assistant", "content": text}
    answer["tool_calls"] = [
        {
            "id": wire_id,
            "type": "function",
            "function": {"name": _name(block["name"]), "arguments": _arguments(block["arguments"])},
        }
        for wire_id, block in zip(ids.of_calls([block["id"] for block in calls]), calls)
    ]
    return answer


def _text(blocks: List[Dict[str, Any]], besides: "tuple[str, ...]" = ()) -> str:
    pieces = []
    for block in blocks:
        if block["type"] == "text":
            pieces.append(block["text"])
        elif block["type"] not in besides:
            raise ModelError(f"Chat Completions can't carry a {block['type']!r} block", code="bad_request")
    return "".join(pieces)


def _name(raw: str) -> str:
    """A tool's name as providers want it. What a model made up would have each later request refused."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", raw)[:64] or "unnamed"


def _arguments(raw: str) -> str:
    """Arguments that every server of the dialect can read back: many parse them, and refuse the rest.

    What the model wrote is kept where it is a JSON object. Blank text means `{}`, and anything else
    goes as a string inside an object, so that the model still sees what was wrong with it.
    """
    if not raw.strip():
        return "{}"
    try:
        # Numbers stay text: there is no limit to their digits in JSON, but one in int().
        value = json.loads(raw, parse_int=str, parse_float=str, parse_constant=_no_constant)
        if isinstance(value, dict):
            return raw
    except (ValueError, RecursionError):
        pass  # no JSON, or nested deeper than anybody reads
    return json.dumps({"invalid_arguments": raw})


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


class _WireIds:
    """Ids of calls that are unique in the whole request, which a strict provider asks for.

    In the log an id is unique in its step only, because providers use ids again. An id that was
    there before gets a number, which follows from what stands before it, so it never changes.
    """

    def __init__(self) -> None:
        self._used: Set[str] = set()
        self._step: Dict[str, str] = {}

    def of_calls(self, ids: List[str]) -> List[str]:
        self._step = {}
        for call_id in ids:
            wire_id, number = call_id, 2
            while wire_id in self._used:
                wire_id, number = f"{call_id}_{number}", number + 1
            self._used.add(wire_id)
            self._step[call_id] = wire_id
        return [self._step[call_id] for call_id in ids]

    def of_result(self, call_id: str) -> str:
        return self._step[call_id]
