"""One step's model request: attempts, what the log keeps of each, and the waits between them.

It knows the session it appends to and the model's protocol, no tool and no inbox.
"""

import contextlib
import random
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional

import attrs

from syncagent.boundary.models.assemble import Assembly
from syncagent.boundary.models.pairing import check_pairing
from syncagent.boundary.models.protocol import Chunk, Model, ModelRequest
from syncagent.boundary.tools.text import clean
from syncagent.cancel import CancellationToken, Cancelled
from syncagent.errors import ModelError
from syncagent.log import Message
from syncagent.log import events as ev
from syncagent.log.events import is_visible
from syncagent.log.state import header_of, message_id
from syncagent.runtime.result import error_of
from syncagent.runtime.session import Session
from syncagent.runtime.stopping import Stopping

__all__ = ["Answer", "Request"]

#: The longest Retry-After that is obeyed, in seconds; a longer one ends the turn with an error.
LONGEST_RETRY_AFTER = 120.0
#: How many chunks that came together go into the log together.
TOGETHER = 256
FIRST_DELAY, LONGEST_DELAY = 0.5, 30.0
#: How a stream may end; another word is a failure, never a success.
FINISHES = ("stop", "tool_calls", "max_tokens")


@attrs.frozen(kw_only=True)
class Answer:
    """What a request came to: the calls to run, the answer's text, whether the limit cut it, its cost."""

    calls: List[Dict[str, Any]]
    text: str
    cut: bool
    usage: Mapping[str, Any]


@attrs.define(kw_only=True)
class Request:
    """The request of one step of a turn.

    `status(text)` tells what is being waited for, None when it is over. `partial` is the text of the
    last attempt that showed any, "" if none did.
    """

    session: Session
    model: Model
    turn: int
    step: int
    token: CancellationToken
    stopping: Stopping
    status: Callable[[Optional[str]], None]
    partial: str = attrs.field(default="", init=False)

    def header(self, request: ModelRequest) -> None:
        """Log what the request says beside its messages, if it is not what the last one said."""
        body = ev.RequestHeader(
            turn=self.turn,
            step=self.step,
            model=str(getattr(self.model, "name", type(self.model).__name__)),
            provider=str(getattr(self.model, "provider", type(self.model).__name__)),
            params=dict(request.params),
            system=request.system,
            tools=[dict(spec) for spec in request.tools],
        )
        if header_of(body) != self.session.state.header:
            self.session.append(body)

    def send(self, request: ModelRequest) -> Answer:
        """Ask until an attempt succeeds; the log then holds the message, if there is anything in it.

        Raises `ModelError` when the last attempt has failed, `Cancelled` when the token is cancelled.
        """
        check_pairing(request.messages)
        retries = int(getattr(self.model, "max_retries", 5))
        attempt = 1
        while True:
            assembly = Assembly()
            try:
                self._attempt(request, attempt, assembly)
                return self._commit(attempt, assembly)
            except ModelError as exc:
                self.token.raise_if_cancelled()
                delay, failed = self._delay(exc, attempt, retries, assembly), exc
            finally:
                self.partial = assembly.text if is_visible(assembly.text) else self.partial
            attempt += 1
            self._wait(attempt, retries, delay, failed)

    def _attempt(self, request: ModelRequest, attempt: int, assembly: Assembly) -> None:
        self.token.raise_if_cancelled()
        name = str(getattr(self.model, "name", type(self.model).__name__))
        with self.stopping.at("model", self.token, name=name):
            stream = self.model.stream(request, token=self.token)
            shown: List[ev.Body] = []  # what isn't in the log yet, since more of it is there already
            with contextlib.closing(_closable(stream)) as chunks:
                try:
                    for chunk in chunks:
                        self.token.raise_if_cancelled()
                        self._take(clean_chunk(chunk), attempt, assembly, shown)
                        if not chunk.more or len(shown) >= TOGETHER:
                            self._log(shown)
                finally:
                    self._log(shown)
        self.token.raise_if_cancelled()
        if assembly.finish is None:
            raise ModelError("the stream ended without a finish reason", code="truncated", retryable=True)
        if assembly.finish not in FINISHES:
            text = f"the stream ended with the unknown finish reason {assembly.finish!r}"
            raise ModelError(text, code="bad_response")

    def _take(self, chunk: Chunk, attempt: int, assembly: Assembly, shown: List[ev.Body]) -> None:
        assembly.add(chunk)
        if chunk.text or chunk.usage or chunk.kind == "tool_call":
            shown.append(
                ev.AssistantChunk(turn=self.turn, step=self.step, attempt=attempt, chunk=chunk.to_dict())
            )

    def _log(self, shown: List[ev.Body]) -> None:
        bodies, shown[:] = list(shown), []
        if bodies:
            self.session.append(*bodies)

    def _commit(self, attempt: int, assembly: Assembly) -> Answer:
        cut = assembly.finish == "max_tokens"
        blocks = assembly.blocks(calls=not cut)
        message = Message(id=message_id(self.session.state), role="assistant", content=blocks)
        if blocks:
            self.session.append(
                ev.AssistantMessage(
                    turn=self.turn, step=self.step, attempt=attempt, message=message, usage=assembly.usage
                )
            )
        return Answer(calls=message.calls, text=message.text, cut=cut, usage=assembly.usage)

    def _delay(self, exc: ModelError, attempt: int, retries: int, assembly: Assembly) -> float:
        """Seconds until the next attempt; raises `exc` if there is to be none."""
        if not exc.retryable or attempt > retries:
            raise exc
        if assembly.visible and not getattr(self.model, "retry_after_output", False):
            raise exc
        if exc.retry_after is None:
            return float(min(LONGEST_DELAY, FIRST_DELAY * 2 ** (attempt - 1)) * random.uniform(0.5, 1.0))
        if exc.retry_after > LONGEST_RETRY_AFTER:
            text = f"{exc}; it asks to wait {exc.retry_after:.0f} s, longer than {LONGEST_RETRY_AFTER:.0f} s"
            raise ModelError(text, code=exc.code, retry_after=exc.retry_after) from exc
        return max(0.0, exc.retry_after)

    def _wait(self, attempt: int, retries: int, delay: float, exc: ModelError) -> None:
        self.session.append(
            ev.ModelRetry(
                turn=self.turn,
                step=self.step,
                attempt=attempt,
                delay_ms=round(delay * 1000),
                error=error_of(exc, default="failed"),
            )
        )
        self.status(f"retrying ({attempt - 1} of {retries})")
        try:
            with self.stopping.at("back-off", self.token):
                if self.token.wait(delay):
                    raise Cancelled(self.token)
        finally:
            self.status(None)


def _closable(stream: Any) -> Any:
    """A model may return any iterator; only a generator can be closed."""
    return stream if hasattr(stream, "close") else _iterate(stream)


def _iterate(stream: Any) -> Iterator[Chunk]:
    yield from stream


def clean_chunk(chunk: Chunk) -> Chunk:
    """The chunk without what is no Unicode."""
    if chunk.id is None and chunk.name is None and chunk.text.isascii():
        return chunk
    text, id, name = clean(chunk.text), clean(chunk.id), clean(chunk.name)
    if (text, id, name) == (chunk.text, chunk.id, chunk.name):
        return chunk
    return attrs.evolve(chunk, text=text, id=id, name=name)
