"""What a model is to the runtime: one method that streams chunks. It knows no wire format.

A dialect is a class with a `stream` method, in a module of its own beside this one.
"""

from typing import Any, Dict, Iterator, Mapping, Optional, Protocol, Sequence

import attrs

from syncagent.cancel import CancellationToken
from syncagent.log import Message

__all__ = ["Chunk", "Model", "ModelRequest", "ToolSpec"]

#: `{"name", "description", "parameters"}`, the last a JSON schema.
ToolSpec = Mapping[str, Any]


@attrs.frozen(kw_only=True)
class ModelRequest:
    """One request of one step, in neutral form.

    `messages` is the whole transcript (see `syncagent.log.derive_messages`), `system` the system
    prompt or "", `tools` what the model may call, `params` what goes to the provider beside them,
    such as `{"temperature": 0}` or `{"tool_choice": ...}`.
    """

    messages: Sequence[Message]
    system: str = ""
    tools: Sequence[ToolSpec] = ()
    params: Mapping[str, Any] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class Chunk:
    """One delta of a stream.

    `kind` is "text", "reasoning" or "tool_call"; `text` the delta, for a call a piece of its
    arguments. A call's first chunk has its `index`, and `id` and `name` as the provider sent them;
    the later ones have its `index`. `usage` holds `input_tokens` and `output_tokens` where the
    provider sent them with this chunk. `finish` is None but on the last chunk, which must have it:
    "stop", "tool_calls" or "max_tokens". `more` says that the next chunk is there already: the runtime
    may then take several together. It is no part of what was said.
    """

    kind: str = "text"
    text: str = ""
    index: Optional[int] = None
    id: Optional[str] = None
    name: Optional[str] = None
    usage: Optional[Mapping[str, Any]] = None
    finish: Optional[str] = None
    more: bool = attrs.field(default=False, eq=False, repr=False)

    def to_dict(self) -> Dict[str, Any]:
        """The form in which the log keeps it: `finish`, `more` and what is None are left out."""
        data: Dict[str, Any] = {"kind": self.kind, "text": self.text}
        if self.kind == "text" and (self.index, self.id, self.name, self.usage) == (None,) * 4:
            return data
        for key in ("index", "id", "name"):
            value = getattr(self, key)
            if value is not None:
                data[key] = value
        if self.usage is not None:
            data["usage"] = dict(self.usage)
        return data


class Model(Protocol):
    """Anything with this method. Optional attributes that the runtime reads where they are there:
    `name` and `provider` (words for the log), `params` (a mapping), `max_retries` (int, default 5),
    `retry_after_output` (bool, default False).
    """

    def stream(self, request: ModelRequest, *, token: CancellationToken) -> Iterator[Chunk]:
        """Make one attempt and yield its chunks as they arrive; the last one has `finish`.

        Raises `ModelError` when the attempt fails, `Cancelled` when `token` is cancelled. Whoever
        iterates closes the iterator, which ends the connection.
        """
        ...  # pragma: no cover
