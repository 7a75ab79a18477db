"""Streamed Chat Completions from the server's side: what it sends, and what it refuses. Pure.

Written from the provider's point of view and apart from the client's code on purpose: a mistake
that both sides shared would show in no test.
"""

import json
import re
from typing import Any, Dict, List, Mapping, Optional

from syncagent.boundary.models.protocol import Chunk

__all__ = ["delta_of", "event", "refusal_of", "usage_of"]

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def event(value: Any) -> bytes:
    """One event of the stream."""
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def delta_of(chunk: Chunk) -> Dict[str, Any]:
    """The `delta` object that says what the chunk says."""
    if chunk.kind == "text":
        return {"content": chunk.text}
    if chunk.kind == "reasoning":
        return {"reasoning_content": chunk.text}
    function: Dict[str, Any] = {"arguments": chunk.text}
    entry: Dict[str, Any] = {"function": function}
    if chunk.name is not None:
        function["name"] = chunk.name
        entry["type"] = "function"
    if chunk.id is not None:
        entry["id"] = chunk.id
    if chunk.index is not None:
        entry["index"] = chunk.index
    return {"tool_calls": [entry]}


def usage_of(counts: Mapping[str, int]) -> Dict[str, Any]:
    """The counts under the names of the wire."""
    given, made = counts.get("input_tokens", 0), counts.get("output_tokens", 0)
    found: Dict[str, Any] = {"prompt_tokens": given, "completion_tokens": made, "total_tokens": given + made}
    if "cached_tokens" in counts:
        found["prompt_tokens_details"] = {"cached_tokens": counts["cached_tokens"]}
    if "reasoning_tokens" in counts:
        found["completion_tokens_details"] = {"reasoning_tokens": counts["reasoning_tokens"]}
    return found


def refusal_of(body: Any) -> Optional[str]:
    """Why a strict provider answers 400 to this request; None if it doesn't."""
    if not isinstance(body, dict):
        return "the body is no JSON object"
    if body.get("stream") is not True:
        return "this server only streams"
    if not isinstance(body.get("model"), str) or not body["model"]:
        return "model is missing"
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        return "messages is missing or empty"
    if not _is_text(body):
        return "the body holds a lone surrogate, which is no text"
    return _refusal_of_tools(body) or _refusal_of_messages(messages)


def _is_text(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _refusal_of_tools(body: Mapping[str, Any]) -> Optional[str]:
    tools = body.get("tools")
    if tools is None:
        return None
    if not isinstance(tools, list) or not tools:
        return "tools is an empty list"
    names = [tool.get("function", {}).get("name") for tool in tools if tool.get("type") == "function"]
    if len(names) != len(tools) or not all(isinstance(name, str) and name for name in names):
        return "a tool is no function with a name"
    return None if len(set(names)) == len(names) else "two tools have the same name"


def _refusal_of_messages(messages: List[Any]) -> Optional[str]:
    """Roles, contents, and each call with one result that follows at once, in order."""
    open_calls: List[str] = []
    seen: List[str] = []
    begun = False
    for place, message in enumerate(messages):
        if not isinstance(message, dict):
            return f"messages[{place}] is no object"
        role = message.get("role")
        if role == "tool":
            if not open_calls or message.get("tool_call_id") != open_calls[0]:
                wanted = f"expected {open_calls[0]!r}" if open_calls else "no call is open"
                got = message.get("tool_call_id")
                return f"messages[{place}] is the result of {got!r}: multiple or misplaced results, {wanted}"
            del open_calls[0]
        elif open_calls:
            return f"messages[{place}]: no result for tool_call_ids {open_calls}"
        elif not begun and role not in ("system", "user"):
            return f"messages[{place}]: the first message must be a user's"
        begun = begun or role == "user"
        problem = _refusal_of_message(message, role, seen, open_calls)
        if problem:
            return f"messages[{place}]{problem}"
    return f"no result for tool_call_ids {open_calls}" if open_calls else None


def _refusal_of_message(
    message: Mapping[str, Any], role: Any, seen: List[str], open_calls: List[str]
) -> Optional[str]:
    if role not in ("system", "user", "assistant", "tool"):
        return f".role is {role!r}"
    if not isinstance(message.get("content"), (str, list)):
        return ".content is no text"
    if "tool_calls" not in message:
        return None
    calls = message["tool_calls"]
    if role != "assistant" or not isinstance(calls, list) or not calls:
        return ".tool_calls is empty, or of no assistant"
    for call in calls:
        call_id, function = call.get("id"), call.get("function", {})
        if not isinstance(call_id, str) or not call_id or call_id in seen:
            return f".tool_calls: the id {call_id!r} is empty or was used before"
        if call.get("type") != "function" or not _NAME.fullmatch(str(function.get("name") or "")):
            return ".tool_calls: a call is no function with a name of 1 to 64 letters, digits, '_' and '-'"
        if not _is_object(function.get("arguments")):
            return f".tool_calls: the arguments of {call_id!r} are no JSON object"
        seen.append(call_id)
        open_calls.append(call_id)
    return None


def _is_object(arguments: Any) -> bool:
    try:
        return isinstance(json.loads(arguments), dict)
    except (TypeError, ValueError, RecursionError):
        return False
