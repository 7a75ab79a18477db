"""From a model's name and the environment to a model. It knows which dialects there are."""

import os
from typing import TYPE_CHECKING, Optional

from syncagent.surface.cli.options import WrongUse

if TYPE_CHECKING:
    from syncagent.boundary.models.chat import ChatModel

__all__ = ["make_model"]

#: Names that will mean something, and what they will mean.
_NOT_YET = {
    "anthropic": "Anthropic's Messages",
    "responses": "OpenAI's Responses",
    "local": "a model of its own",
}


def make_model(name: Optional[str], *, base_url: Optional[str]) -> "ChatModel":
    """The model of that name: `openai:NAME`, or a bare NAME, which may hold colons itself.

    The key is OPENAI_API_KEY's; a server at `base_url` may need none. Raises `WrongUse`.
    """
    if not name:
        raise WrongUse("no model is named: give -m NAME, or set SYNCAGENT_MODEL")
    kind, _, rest = name.partition(":")
    if kind in _NOT_YET:
        raise WrongUse(
            f"the model {name!r} can't be used yet: {_NOT_YET[kind]} is not there;"
            " openai:NAME speaks Chat Completions, also to a server of your own with --base-url"
        )
    if kind == "openai" and not rest:
        raise WrongUse("a model is named openai:NAME: the NAME is missing")
    key = os.environ.get("OPENAI_API_KEY") or None
    if key is None and not base_url:
        raise WrongUse("there is no key: set OPENAI_API_KEY, or name your own server with --base-url")
    from syncagent.boundary.models.chat import ChatModel

    try:
        return ChatModel(rest if kind == "openai" else name, base_url=base_url or None, api_key=key)
    except ValueError as exc:
        raise WrongUse(_in_words(str(exc))) from exc


def _in_words(text: str) -> str:
    """Name what the user gave, not the parameter that it became."""
    return text.replace("base_url", "--base-url (or OPENAI_BASE_URL)").replace("api_key", "OPENAI_API_KEY")
