"""A model behind Chat Completions, the dialect that most providers and local servers speak.

It knows the wire, and neither sessions nor retries: one call of `stream` is one attempt.
"""

import contextlib
import itertools
import json
import re
from types import TracebackType
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple, Type, Union
from urllib.parse import quote, unquote, urlsplit

from syncagent._version import __version__
from syncagent.boundary.http.client import HttpClient, Response, header_problem
from syncagent.boundary.http.failures import TransportError, describe
from syncagent.boundary.http.sse import ServerSentEvent, read_batches
from syncagent.boundary.models.chat_reply import ChatReply
from syncagent.boundary.models.chat_request import RESERVED, encode_request
from syncagent.boundary.models.failures import error_of_object, error_of_status
from syncagent.boundary.models.pairing import check_pairing
from syncagent.boundary.models.protocol import Chunk, ModelRequest
from syncagent.cancel import CancellationToken
from syncagent.errors import ModelError

__all__ = ["ChatModel"]

_DECODER = json.JSONDecoder()

#: Bytes of a whole answer that isn't streamed.
_LARGEST_BODY = 32 * 1024 * 1024


class ChatModel:
    """A `Model` that speaks streamed Chat Completions over HTTP.

        model = ChatModel("gpt-x", api_key="sk-1234", params={"temperature": 0})
        local = ChatModel("any", base_url="http://127.0.0.1:8000/v1")

    `name` is the provider's name of the model, `base_url` the address up to and without
    `/chat/completions` (None: OpenAI's), `api_key` goes as a bearer token (None: none is sent);
    nothing is read from the environment but, with `trust_env`, proxies and certificates. `params`
    are sent with each request, `headers` too, in place of ours where they have the same name.

    `idle_timeout` limits the silence before and between the bytes of an answer and
    `connect_timeout` the connecting, both in seconds; None is no limit, and there is none to the
    whole. `verify` is as in requests. `dns` is "child" or "inline": whether host names are looked up
    in a child process, which a cancel ends at once, or in this one, where it waits for the resolver.
    `max_retries` and `retry_after_output` are for the runtime: how often it tries again, and whether
    also an attempt that has shown something.

    The key is in no exception, log or repr. Any number of threads may use a model at once. Raises
    `ValueError` for an address, header or parameter that can't be sent.
    """

    provider = "openai"

    def __init__(
        self,
        name: str,
        *,
        base_url: Optional[str] = None,
        api_key: Optional[str] = None,
        params: Optional[Mapping[str, Any]] = None,
        idle_timeout: Optional[float] = 300.0,
        connect_timeout: Optional[float] = 30.0,
        max_retries: int = 5,
        retry_after_output: bool = False,
        headers: Optional[Mapping[str, str]] = None,
        verify: Union[bool, str] = True,
        trust_env: bool = True,
        dns: str = "child",
    ) -> None:
        if not isinstance(name, str) or not name.strip():
            raise ValueError(f"name is the provider's name of the model, such as 'gpt-x', not {name!r}")
        self.name = name
        self.params: Dict[str, Any] = dict(params or {})
        for reserved in sorted(RESERVED.intersection(self.params)):
            raise ValueError(f"{reserved!r} can't be given in params")
        if not isinstance(max_retries, int) or max_retries < 0:
            raise ValueError(f"max_retries is a whole number, 0 or more, not {max_retries!r}")
        self.max_retries = max_retries
        self.retry_after_output = retry_after_output
        self._url = _endpoint(base_url or "https://api.openai.com/v1")
        self._headers = _headers(api_key, headers or {})
        self._redact = _redactor(self._headers, self._url)
        self._client = HttpClient(
            connect_timeout=connect_timeout,
            idle_timeout=idle_timeout,
            verify=verify,
            trust_env=trust_env,
            dns=dns,
        )

    def __repr__(self) -> str:
        return f"<ChatModel {self.name!r} at {self._redact(describe(self._url))}>"

    def stream(self, request: ModelRequest, *, token: CancellationToken) -> Iterator[Chunk]:
        """Make one attempt and yield its chunks as they arrive; the last one has `finish`.

        An answer that ends without a finish reason is a `ModelError` of the code "truncated", and
        one that a content filter cut off one of "content_filter". A provider's error has the same
        code whether it came as an HTTP status or inside the stream. Raises `Cancelled` when `token`
        is cancelled; that, like closing the iterator, ends the connection.
        """
        token.raise_if_cancelled()
        check_pairing(request.messages)
        body = encode_request(request, model=self.name, params=self.params)
        reply = ChatReply()
        with self._failures():
            with self._client.stream(
                "POST", self._url, token=token, headers=self._headers, body=body
            ) as response:
                if response.status >= 400:
                    raise self._error_of(response)
                yield from _announced(
                    (reply.feed(value), more) for value, more in self._objects(response, reply)
                )
            yield from reply.end()
        token.raise_if_cancelled()

    def close(self) -> None:
        """Close the idle connections. Requests that run go on; the model may be used again."""
        self._client.close()

    def __enter__(self) -> "ChatModel":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        value: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self.close()

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        """Make every failure a `ModelError` whose text, and whose cause's, holds no secret."""
        try:
            yield
        except ModelError as exc:
            exc.args = (self._redact(str(exc)),)
            raise
        except TransportError as exc:
            exc.args = (self._redact(str(exc)),)
            raise ModelError(str(exc), code=exc.code, retryable=exc.retryable) from exc

    def _error_of(self, response: Response) -> ModelError:
        body = b""
        with contextlib.suppress(TransportError):  # the status says enough without its body
            body = response.read()
        error = error_of_status(
            response.status,
            reason=response.reason,
            headers=response.headers,
            body=body,
            redact=self._redact,
        )
        if response.status in (404, 405):  # most often the address is wrong
            error.args = (f"POST {describe(self._url)}: {error}",)
        return error

    def _objects(self, response: Response, reply: ChatReply) -> Iterator[Tuple[Dict[str, Any], bool]]:
        """The JSON objects of the answer: many of a stream, or one of a server that doesn't stream.
        With each, whether the next one is there already.

        What kind it is, is seen from its first byte: the content type is often wrong.
        """
        pieces = response.iter_bytes()
        start = b""
        for piece in pieces:
            start = (start + piece).lstrip(b"\xef\xbb\xbf\r\n\t ")
            if start:
                break
        whole = itertools.chain([start], pieces)
        if start[:1] == b"<":
            raise ModelError("the answer is a page of HTML: is the address right?", code="bad_response")
        if start[:1] in (b"{", b"["):
            yield self._object(_join(whole), response), False
            return
        try:
            for batch in read_batches(whole):
                said = [event for event in batch if event.data.strip()]
                done = [n for n, event in enumerate(said) if event.data.strip() == "[DONE]"]
                said = said[: done[0]] if done else said
                for number, event in enumerate(said, 1):
                    yield self._object_of_event(event, response), number < len(said)
                if done:
                    response.drain()
                    return
        except TransportError:
            # Some servers cut the connection instead of ending the stream. All was said by then.
            if not reply.finished:
                raise

    def _object_of_event(self, event: ServerSentEvent, response: Response) -> Dict[str, Any]:
        if event.event == "error" and not event.data.lstrip().startswith("{"):
            raise error_of_object(event.data, headers=response.headers, redact=self._redact)
        return self._object(event.data, response, failed=event.event == "error")

    def _object(self, text: Union[str, bytes], response: Response, failed: bool = False) -> Dict[str, Any]:
        value: Any = None
        # Nothing is raised while a JSON error is handled: that one would stay with it, text and all.
        with contextlib.suppress(ValueError, RecursionError):
            value = _DECODER.decode(text) if isinstance(text, str) else json.loads(text)
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if not isinstance(value, dict):
            raise ModelError("the answer is no JSON, or no object", code="bad_response", retryable=True)
        error = value.get("error") or (value if failed or value.get("object") == "error" else None)
        if error:
            raise error_of_object(error, headers=response.headers, redact=self._redact)
        return value


def _announced(groups: Iterable[Tuple[Iterable[Chunk], bool]]) -> Iterator[Chunk]:
    """The chunks of all groups; `more` is set on each behind which another one of its batch stands.

    With each group, whether another one is there already. What was said before an error comes first.
    """
    held: Optional[Chunk] = None
    try:
        for chunks, more in groups:
            for chunk in chunks:
                if held is not None:
                    object.__setattr__(held, "more", True)  # nobody has it yet
                    yield held
                held = chunk
            if held is not None and not more:
                last, held = held, None
                yield last
    except Exception:
        if held is not None:
            yield held
        raise


def _join(pieces: Iterable[bytes]) -> bytes:
    found: List[bytes] = []
    size = 0
    for piece in pieces:
        found.append(piece)
        size += len(piece)
        if size > _LARGEST_BODY:
            raise ModelError("the answer is larger than 32 MiB and not streamed", code="bad_response")
    return b"".join(found)


def _endpoint(base_url: str) -> str:
    if not _is_address(base_url):
        raise ValueError("base_url must be an http or https address, such as http://127.0.0.1:8000/v1")
    parts = urlsplit(base_url)
    path = parts.path.rstrip("/")
    if not path.endswith("/chat/completions"):
        path += "/chat/completions"
    return parts._replace(path=path, fragment="").geturl()


def _is_address(text: str) -> bool:
    """Whether the text is an address that can be asked. No reason is given: it would quote secrets."""
    try:
        parts = urlsplit(text)
        port, host = parts.port, parts.hostname or ""
    except ValueError:  # of its port, or of brackets that don't fit
        return False
    named = all(host.rstrip(".").split("."))  # the libraries below take port 0 for none
    plain = not re.search(r"[\x00-\x20\x7f]", text)
    return parts.scheme in ("http", "https") and named and plain and port != 0


def _headers(api_key: Optional[str], given: Mapping[str, str]) -> Dict[str, str]:
    """All headers of a request. The values are checked here, where no library quotes them."""
    found = {
        "content-type": "application/json",
        "accept": "text/event-stream",
        "user-agent": f"syncagent/{__version__}",
    }
    if api_key is not None:
        if not re.fullmatch(r"[\x21-\x7e]+", api_key.strip()):
            raise ValueError("api_key is empty, or holds a space or a character that no header can carry")
        found["authorization"] = f"Bearer {api_key.strip()}"
    for name, value in given.items():
        problem = header_problem(name, value)
        if problem:
            raise ValueError(problem)
        found[name.lower()] = value
    return found


def _redactor(headers: Mapping[str, str], url: str) -> Callable[[str], str]:
    """A function that takes the secrets of headers and address out of a text, however quoted."""
    parts = urlsplit(url)
    secrets = [unquote(parts.password or ""), *(pair.partition("=")[2] for pair in parts.query.split("&"))]
    for name, value in headers.items():
        if name not in ("content-type", "accept", "user-agent"):
            secrets += [value, value.rpartition(" ")[2]]
    # What is shorter is no secret, and would be found in any text.
    known = {secret for secret in secrets if len(secret) > 3}
    known |= {quote(secret, safe="") for secret in known} | {json.dumps(secret)[1:-1] for secret in known}
    pattern = "|".join(re.escape(secret) for secret in sorted(known, key=len, reverse=True))
    if not pattern:
        return str
    found = re.compile(pattern)
    return lambda text: found.sub("[redacted]", text)
