"""What went wrong with a request, in one exception. It knows no URL's secrets: it drops them.

The libraries below raise a dozen classes, and not the same ones from version to version, whose texts
quote whole URLs and header values. So the chain of causes is looked through, and the text is ours.
"""

import http.client
import re
import socket
import ssl
from typing import Iterator, List, Optional, Tuple
from urllib.parse import urlsplit

from syncagent.errors import SyncagentError

__all__ = ["TransportError", "classify", "describe"]

_TUNNEL = re.compile(r"Tunnel connection failed: (\d+)")  # http.client has no class for it

_Verdict = Tuple[str, bool, str]  # code, retryable, text


class TransportError(SyncagentError):
    """A request didn't get its whole answer.

    `code` is one of

    - "connection": not reached, refused or cut off before the end;
    - "timeout": no connection, or silence, for longer than the limit;
    - "certificate": the server's or the client's certificate was refused, or can't be loaded;
    - "protocol": what was sent or asked for is no valid HTTP, TLS or event stream;
    - "redirect": the server answered 3xx, which is not followed.

    `retryable` says whether the same request may work later. The text holds no header, no query and
    no user name or password of a URL.
    """

    def __init__(self, message: str, *, code: str, retryable: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.retryable = retryable


def describe(url: str) -> str:
    """The URL without what may be secret in it: no user, password, query or fragment."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        port = f":{parts.port}" if parts.port is not None else ""
    except ValueError:
        return "an invalid URL"
    if not parts.scheme or not host:
        return "an invalid URL"
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}{port}{parts.path}"


def classify(
    exc: BaseException, *, where: str, silence: str, outer: Optional[BaseException] = None
) -> Optional[TransportError]:
    """The `TransportError` for what a library raised, or None if that is no failure of a request.

    `where` names the request and `silence` the limits, for the text. `outer` is the exception that
    was being handled when the request began: it is the end of the chain of causes, not a cause.
    """
    import requests
    import urllib3.exceptions

    known = (OSError, http.client.HTTPException, requests.RequestException, urllib3.exceptions.HTTPError)
    if not isinstance(exc, known):
        return None
    chain = list(_chain(exc, outer))
    code, retryable, text = (
        _certificate(chain)
        or _timeout(chain, silence)
        or _proxy(chain)
        or _unresolved(chain)
        or _tls(chain)
        or _broken(chain)
        or _unsendable(chain)
        or ("connection", True, _reason(chain))
    )
    failure = TransportError(f"{where}: {text}", code=code, retryable=retryable)
    failure.__cause__ = _root(chain)
    return failure


def _chain(exc: BaseException, outer: Optional[BaseException]) -> Iterator[BaseException]:
    """`exc` and its causes, nearest first, without `outer` and what lies behind it."""
    todo: List[Optional[BaseException]] = [exc]
    seen: List[BaseException] = []
    while todo:
        item = todo.pop(0)
        if item is None or item is outer or any(item is known for known in seen):
            continue
        seen.append(item)
        yield item
        inner = [getattr(item, "reason", None), item.__cause__, *item.args, item.__context__]
        todo.extend(each for each in inner if isinstance(each, BaseException))


def _root(chain: List[BaseException]) -> Optional[BaseException]:
    """The error of the operating system or of TLS, whose text names no URL and no header."""
    import requests

    for item in reversed(chain):
        if isinstance(item, OSError) and not isinstance(item, requests.RequestException):
            return None if _TUNNEL.match(str(item)) else item  # it quotes the proxy's answer
    return None


def _certificate(chain: List[BaseException]) -> Optional[_Verdict]:
    for item in chain:
        if isinstance(item, ssl.SSLCertVerificationError):
            reason = getattr(item, "verify_message", "") or str(item)
            return "certificate", False, f"the server's certificate was refused: {reason}"
        if type(item).__name__ == "CertificateError":
            return "certificate", False, f"the server's certificate was refused: {item}"
        if isinstance(item, ssl.SSLError) and "CERTIFICATE" in _ssl_reason(item):
            return "certificate", False, f"a certificate was refused or can't be loaded: {_ssl_reason(item)}"
    return None


def _timeout(chain: List[BaseException], silence: str) -> Optional[_Verdict]:
    from urllib3.exceptions import ReadTimeoutError

    for item in chain:
        # socket.timeout is TimeoutError from Python 3.10 on; before, the kernel's is another class.
        if isinstance(item, (socket.timeout, TimeoutError, ReadTimeoutError)):
            return "timeout", True, f"timed out ({silence})"
    return None


def _proxy(chain: List[BaseException]) -> Optional[_Verdict]:
    for item in chain:
        found = _TUNNEL.match(str(item)) if type(item) is OSError else None
        if found:
            status = int(found.group(1))
            retryable = status >= 500 or status in (408, 429)
            return "connection", retryable, f"the proxy answered {status} to CONNECT"
    return None


def _unresolved(chain: List[BaseException]) -> Optional[_Verdict]:
    for item in chain:
        if isinstance(item, socket.gaierror):
            # "No such name" is an answer; the other codes say that there was none.
            final = item.errno in (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME))
            return "connection", not final, f"the host's name was not resolved: {item.strerror}"
    return None


def _tls(chain: List[BaseException]) -> Optional[_Verdict]:
    cut = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
    for item in chain:
        if isinstance(item, cut):
            return "connection", True, "the connection ended within TLS"
        if isinstance(item, ssl.SSLError):
            return "protocol", False, f"TLS failed: {_ssl_reason(item) or item}"
    return None


def _ssl_reason(exc: ssl.SSLError) -> str:
    """OpenSSL's word for it; what the ssl module raises by itself has none."""
    return getattr(exc, "reason", None) or ""


def _broken(chain: List[BaseException]) -> Optional[_Verdict]:
    """What http.client says of the bytes that came. Its texts may quote them, so they aren't used."""
    from urllib3.exceptions import InvalidHeader

    for item in chain:
        if isinstance(item, http.client.IncompleteRead):
            return "connection", True, "the connection ended within the answer's body"
        if isinstance(item, (http.client.RemoteDisconnected, ConnectionError)):
            return "connection", True, _reason(chain)
        # urllib3's InvalidHeader is of the answer; the one of requests, which is a ValueError, isn't.
        if isinstance(item, http.client.HTTPException) or type(item) is InvalidHeader:
            return "protocol", False, f"the answer is no valid HTTP ({type(item).__name__})"
    return None


def _unsendable(chain: List[BaseException]) -> Optional[_Verdict]:
    for item in chain:
        # requests gives its "this can't be sent" exceptions ValueError as a second base.
        if isinstance(item, ValueError):
            name = type(item).__name__
            detail = f": {item}" if "SOCKS" in str(item) else ""
            return "protocol", False, f"the request can't be sent ({name}{detail})"
    return None


def _reason(chain: List[BaseException]) -> str:
    if any(isinstance(item, http.client.RemoteDisconnected) for item in chain):
        return "the server closed the connection without an answer"
    root = _root(chain)
    text = getattr(root, "strerror", None) or (str(root) if root is not None else "")
    return f"the connection failed: {text or type(chain[0]).__name__}"
