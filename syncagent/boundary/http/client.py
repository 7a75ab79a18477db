"""Makes one request and streams its answer. It knows no provider, no event stream and no retry.

Every wait is woken by the token; how, says `syncagent.boundary.http.adapter`, which is imported with
the first request, because it loads requests.
"""

import contextlib
import os
import re
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Iterator, Mapping, Optional, Union

from syncagent.boundary.http.failures import TransportError, classify, describe
from syncagent.boundary.http.names import Names
from syncagent.cancel import CancellationToken, Cancelled
from syncagent.seconds import check_seconds

if TYPE_CHECKING:
    import requests

__all__ = ["HttpClient", "Response", "TransportError", "header_problem"]


class Response:
    """An answer whose body is still to be read, within the block of `HttpClient.stream`.

    `status` is its number, `reason` its phrase, `headers` a mapping with keys in any case, `url` what
    was asked for.
    """

    def __init__(self, raw: "requests.Response", *, url: str, pieces: Iterator[bytes], lease: Any) -> None:
        self.status: int = raw.status_code
        self.reason: str = raw.reason or ""
        self.headers: Mapping[str, str] = raw.headers
        self.url = url
        self._pieces = pieces
        self._lease = lease
        self._rest = b""
        self._left = False

    def __repr__(self) -> str:
        return f"<Response {self.status} {self.reason} of {describe(self.url)}>"

    def iter_bytes(self) -> Iterator[bytes]:
        """Yield the body in non-empty pieces as they arrive, until it ends.

        Transfer and content codings are undone. Raises `TransportError` when the body is cut off, is
        garbled or when nothing came for longer than the idle limit, and `Cancelled` when the token is
        cancelled, however the body ended. Outside the block it's a `ValueError`.
        """
        if self._rest:
            rest, self._rest = self._rest, b""
            yield rest
        while True:
            if self._left:  # it would look like the end of the body
                raise ValueError("the block of the request was left: its body can't be read any more")
            piece = next(self._pieces, b"")
            if not piece:
                return
            yield piece

    def read(self, limit: int = 65536) -> bytes:
        """The first `limit` bytes of the body, or all of it if it's shorter. Raises like `iter_bytes`.

        A connection is used again only if its body was read to the end, see `drain`.
        """
        parts, length = [], 0
        for piece in self.iter_bytes():
            parts.append(piece)
            length += len(piece)
            if length > limit:
                break
        data = b"".join(parts)
        self._rest = data[limit:]
        return data[:limit]

    def drain(self, seconds: float = 0.05) -> None:
        """Drop the rest of a body that ends within so many seconds, so that its connection is used again.

        For a caller that has all it wants and knows that little or nothing follows. If more does, or
        silence, the block's end closes the connection. Raises `Cancelled` when the token is cancelled.
        """
        end = time.monotonic() + seconds
        with contextlib.suppress(TransportError):  # it was cut off or takes longer: it's closed then
            while time.monotonic() < end:
                self._lease.limit_silence(seconds)
                if not next(self._pieces, b""):
                    return


class HttpClient:
    """Connections that are kept between requests; any number of threads may use it at once.

    `connect_timeout` limits the lookup of a host's name, connecting to each of its addresses and the
    TLS handshake, each for itself, `idle_timeout`
    the silence before and between the bytes of an answer, both in seconds; None is no limit. There is
    no limit to the whole. `verify` is False, True or the path of a bundle of certificates. With
    `trust_env` the proxies and the bundle are taken from the environment, as requests does it;
    `proxies`, such as `{"https": "http://127.0.0.1:3128"}`, replaces those of the environment.

    With `dns="child"` names are looked up in a child process, which a cancel kills at once; with
    "inline" in this process, where a cancel waits for the resolver and there is no time-out. What was
    found is used again for a minute, or until nobody is met there.

    It follows no redirects, retries nothing, keeps no cookies and sends no credentials of a netrc file.
    """

    def __init__(
        self,
        *,
        connect_timeout: Optional[float] = 30.0,
        idle_timeout: Optional[float] = 300.0,
        verify: Union[bool, str] = True,
        trust_env: bool = True,
        proxies: Optional[Mapping[str, str]] = None,
        dns: str = "child",
    ) -> None:
        self._connect_timeout = _limit("connect_timeout", connect_timeout)
        self._idle_timeout = _limit("idle_timeout", idle_timeout)
        self._verify = verify
        self._trust_env = trust_env
        self._proxies = None if proxies is None else dict(proxies)
        self._names = Names(dns)
        self._lock = threading.Lock()
        self._session: Optional["requests.Session"] = None
        self._pid = 0

    @contextlib.contextmanager
    def stream(
        self,
        method: str,
        url: str,
        *,
        token: CancellationToken,
        headers: Optional[Mapping[str, str]] = None,
        body: Optional[bytes] = None,
    ) -> Iterator[Response]:
        """Make a request; the block runs when the headers of its answer are there, whatever the status.

        Leaving the block ends the request: a connection whose body was not read to the end is closed.
        Raises `TransportError` when there is no answer or it's a redirect. Whatever goes wrong, or
        ends, while the token is cancelled is raised as `Cancelled`.
        """
        from syncagent.boundary.http.adapter import Lease

        token.raise_if_cancelled()
        where = f"{method} {describe(url)}"
        for name, value in (headers or {}).items():
            problem = header_problem(name, value)
            if problem:
                raise TransportError(f"{where}: {problem}", code="protocol")
        with _as_cancelled(token), Lease(token, names=self._names) as lease:
            with self._translated(where):
                raw = self._send(method, url, headers, body, lease, where)
            with contextlib.closing(raw):
                token.raise_if_cancelled()
                _refuse_redirect(raw, where)
                response = Response(raw, url=url, pieces=self._pieces(raw, token, where), lease=lease)
                try:
                    yield response
                finally:
                    response._left = True
                token.raise_if_cancelled()

    def close(self) -> None:
        """Close the idle connections and forget the addresses of hosts.

        Requests that run go on; the client may be used again.
        """
        self._names.clear()
        with self._lock:
            session, self._session = self._session, None
        if session is not None:
            session.close()

    # -- one request --------------------------------------------------------------------------------

    def _send(
        self,
        method: str,
        url: str,
        headers: Optional[Mapping[str, str]],
        body: Optional[bytes],
        lease: Any,
        where: str,
    ) -> "requests.Response":
        import requests

        session = self._open_session()
        # For a stream, compression only delays what is small anyway.
        given = {"Accept-Encoding": "identity", **(headers or {})}
        prepared = session.prepare_request(requests.Request(method, url, headers=given, data=body))
        assert prepared.url is not None
        settings = session.merge_environment_settings(prepared.url, {}, True, self._verify, None)
        if self._proxies is not None:
            settings["proxies"] = self._proxies
        bundle = settings["verify"]
        if isinstance(bundle, str) and not os.path.exists(bundle):
            raise TransportError(f"there is no certificate bundle at {bundle}", code="certificate")
        adapter: Any = session.get_adapter(prepared.url)
        where += _by_proxy(prepared.url, settings["proxies"])
        with self._translated(where), adapter.bound(lease, silence=self._idle_timeout):
            # Not session.send: it would read a redirect's whole body, and keep cookies.
            response: "requests.Response" = adapter.send(
                prepared, timeout=(self._connect_timeout, self._idle_timeout), **settings
            )
            return response

    def _pieces(self, raw: "requests.Response", token: CancellationToken, where: str) -> Iterator[bytes]:
        from syncagent.boundary.http.body import Body

        # A shutdown may look like the end of the body, so the token is asked after the last piece too.
        with _as_cancelled(token):
            with self._translated(where):
                pieces = iter(Body(raw.raw))
            while True:
                token.raise_if_cancelled()
                with self._translated(where):
                    piece = next(pieces, b"")
                token.raise_if_cancelled()
                if not piece:
                    return
                yield piece

    @contextlib.contextmanager
    def _translated(self, where: str) -> Iterator[None]:
        outer = sys.exc_info()[1]
        try:
            yield
        except TransportError:
            raise
        except Exception as exc:
            silence = f"connect time-out {self._connect_timeout} s, idle limit {self._idle_timeout} s"
            failure = classify(exc, where=where, silence=silence, outer=outer)
            if failure is None:
                raise
            # Not the exception that was caught: its text quotes the URL's query and headers.
            raise failure from failure.__cause__

    def _open_session(self) -> "requests.Session":
        """The session, made when it's first needed, and anew in a forked child: sockets can't be shared."""
        with self._lock:
            if self._session is None or self._pid != os.getpid():
                self._session = _make_session(self._trust_env)
                self._pid = os.getpid()
            return self._session


def _limit(name: str, given: Optional[float]) -> Optional[float]:
    """A time-out for sockets, whose clock counts milliseconds in 31 bits."""
    limit = check_seconds(name, given, positive=True)
    return None if limit is None else min(limit, 1e6)


def _make_session(trust_env: bool) -> "requests.Session":
    import requests

    from syncagent.boundary.http.adapter import CancellableAdapter

    session = requests.Session()
    session.trust_env = trust_env
    session.auth = _keep_headers
    adapter = CancellableAdapter()
    for prefix in ("https://", "http://"):
        session.mount(prefix, adapter)
    return session


def _by_proxy(url: str, proxies: Mapping[str, str]) -> str:
    """What a failure says of the proxy: often the environment names one that nobody thinks of."""
    from requests.utils import select_proxy

    proxy = select_proxy(url, dict(proxies))
    if not proxy:
        return ""
    return f" by the proxy at {describe(proxy if '://' in proxy else f'http://{proxy}')}"


def _keep_headers(request: "requests.PreparedRequest") -> "requests.PreparedRequest":
    """Keep requests from replacing the caller's Authorization by what a netrc file says."""
    import requests
    from requests.utils import get_auth_from_url

    user, password = get_auth_from_url(request.url or "")
    if user and "Authorization" not in request.headers:
        requests.auth.HTTPBasicAuth(user, password)(request)
    return request


def header_problem(name: str, value: str) -> Optional[str]:
    """Why a header can't be sent, None if it can. It quotes no value, as the libraries below would."""
    if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):
        return "a header's name is not valid: it has letters, digits and '-'"  # may hold a misplaced secret
    if not isinstance(value, str):
        return f"the value of header {name!r} is no text"
    if not re.fullmatch(r"(?![ \t])[\t\x20-\x7e\x80-\xff]*", value):
        return (
            f"the value of header {name!r} can't be sent: it begins with a space, has a line break or"
            " another control character, or a character outside latin-1"
        )
    return None


def _refuse_redirect(raw: "requests.Response", where: str) -> None:
    if 300 <= raw.status_code < 400:
        target = describe(raw.headers.get("location", ""))
        raise TransportError(
            f"{where}: the server answered {raw.status_code}, a redirect to {target}, which is not followed",
            code="redirect",
        )


@contextlib.contextmanager
def _as_cancelled(token: CancellationToken) -> Iterator[None]:
    """Turn whatever is raised while the token is cancelled into `Cancelled`.

    What is no `Exception` goes through: another token's `Cancelled`, KeyboardInterrupt, and the
    GeneratorExit of a consumer that stops early.
    """
    try:
        yield
    except Exception as exc:
        if token.cancelled:
            raise Cancelled(token) from exc
        raise
