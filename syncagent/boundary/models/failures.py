"""What a provider's error means: code, whether to try again, and when. Pure; it opens nothing.

The same table serves an HTTP status, an error object inside a stream, and every dialect.
"""

import datetime
import email.utils
import json
import re
import time
from typing import Any, Callable, Mapping, Optional, Tuple, Union

from syncagent.errors import ModelError

__all__ = ["error_of_object", "error_of_status", "retry_after"]

#: A longer wait is taken as this one, in seconds: it is no wait that anybody obeys, but it says so.
_LONGEST_WAIT = 366 * 24 * 3600.0

#: How much of a provider's text goes into a message.
_SHOWN = 500

#: The words that providers use in `type` and `code`, and the status that they would have sent.
_STATUS_OF_WORD = {
    "insufficient_quota": 402,
    "billing_not_active": 402,
    "insufficient_balance": 402,
    "context_length_exceeded": 400,
    "invalid_request_error": 400,
    "bad_request": 400,
    "badrequesterror": 400,
    "invalid_api_key": 401,
    "authentication_error": 401,
    "permission_error": 403,
    "permission_denied": 403,
    "not_found_error": 404,
    "model_not_found": 404,
    "notfounderror": 404,
    "timeout": 408,
    "rate_limit_exceeded": 429,
    "rate_limit_error": 429,
    "requests": 429,
    "tokens": 429,
    "server_error": 500,
    "internal_error": 500,
    "internal_server_error": 500,
    "internalservererror": 500,
    "api_error": 500,
    "overloaded": 503,
    "overloaded_error": 503,
    "engine_overloaded": 503,
    "service_unavailable": 503,
    "service_unavailable_error": 503,
    "unavailable": 503,
    "resource_exhausted": 429,
}

_OVERFLOW = re.compile(
    r"context[ _]?(length|window|size|limit)|maximum context|prompt is too long|too many (input )?tokens"
    r"|exceeds? the (available|maximum) (context|number of tokens)|input is too long",
    re.IGNORECASE,
)


def error_of_status(
    status: int,
    *,
    reason: str = "",
    headers: Optional[Mapping[str, str]] = None,
    body: Union[bytes, str, Mapping[str, Any]] = b"",
    redact: Callable[[str], str] = str,
) -> ModelError:
    """The error of an answer with this HTTP status; `body` is what came with it, of any form.

    `redact` takes secrets out of the provider's text, before that is shortened: half a key is one too.
    """
    text, words = _read_body(body)
    message = _shorten(redact(text))
    code, retryable = _classify(status, words, text)
    shown = f"HTTP {status}" + (f" {reason}" if reason else "") + (f": {message}" if message else "")
    return ModelError(shown, code=code, retryable=retryable, retry_after=retry_after(headers or {}))


def error_of_object(
    error: Any, *, headers: Optional[Mapping[str, str]] = None, redact: Callable[[str], str] = str
) -> ModelError:
    """The error of an error object that came inside a stream whose status was 200.

    A provider that reports its own failure without saying of which kind may do better next time.
    """
    text, words = _read_error(error)
    message = _shorten(redact(text))
    status = next((known for known in map(_status_of_word, words) if known is not None), 500)
    code, retryable = _classify(status, words, text)
    shown = "the provider reported an error" + (f": {message}" if message else "")
    return ModelError(shown, code=code, retryable=retryable, retry_after=retry_after(headers or {}))


def _status_of_word(word: str) -> Optional[int]:
    if word.isdigit() and word.isascii() and len(word) == 3 and word >= "400":
        return int(word)
    return _STATUS_OF_WORD.get(word)


def _classify(status: int, words: Tuple[str, ...], message: str) -> Tuple[str, bool]:
    """The code of `ModelError` and whether the same request may work later."""
    if status == 402 or any(_STATUS_OF_WORD.get(word) == 402 for word in words):
        return "insufficient_quota", False
    if status in (401, 403):
        return "authentication", False
    if status == 404:
        return "not_found", False
    if status == 429:
        return "rate_limit", True
    if status in (408, 503, 529):
        return "overloaded", True
    if status in (409, 425) or status >= 500:
        return "server_error", True
    if "context_length_exceeded" in words or _OVERFLOW.search(message):
        return "context_overflow", False
    return "bad_request", False


def _read_body(body: Union[bytes, str, Mapping[str, Any]]) -> Tuple[str, Tuple[str, ...]]:
    value: Any = body
    if isinstance(body, (bytes, str)):
        text = body if isinstance(body, str) else body.decode("utf-8", "replace")
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return text, ()
    if isinstance(value, list) and value:
        value = value[0]  # a list of one error
    if isinstance(value, Mapping) and value.get("error"):
        value = value["error"]
    return _read_error(value)


def _read_error(error: Any) -> Tuple[str, Tuple[str, ...]]:
    """The message of an error object, and the words with which it says its kind."""
    if not isinstance(error, Mapping):
        return str(error), ()
    inner = error.get("error")
    if isinstance(inner, Mapping):
        return _read_error(inner)
    found = [error.get(key) for key in ("message", "detail", "msg", "error")]
    message = next((value for value in found if value), None)
    if message is not None and not isinstance(message, str):
        message = json.dumps(message)
    given = [error.get(key) for key in ("code", "type", "status")]
    words = (str(word).lower() for word in given if isinstance(word, (str, int)))
    return message or "", tuple(words)


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else line[: _SHOWN - 1] + "…"


def retry_after(headers: Mapping[str, str], *, now: Optional[float] = None) -> Optional[float]:
    """The seconds after which the provider wants the next attempt; None if it doesn't say.

    Reads `Retry-After-Ms` and `Retry-After`, the latter in seconds or as an HTTP date; what lies in
    the past is 0, what lies more than a year ahead is a year, what can't be read is None. `now` is in
    seconds since the epoch.
    """
    lower = {name.lower(): value for name, value in headers.items()}
    milliseconds = _number(lower.get("retry-after-ms", ""))
    if milliseconds is not None:
        return _usable(milliseconds / 1000)
    value = lower.get("retry-after", "").strip()
    seconds = _number(value)
    if seconds is None:
        date = _date(value)
        if date is None:
            return None
        seconds = date - (time.time() if now is None else now)
    return _usable(seconds)


def _usable(seconds: float) -> float:
    return min(max(0.0, seconds), _LONGEST_WAIT)


def _number(value: str) -> Optional[float]:
    # Not plain float(): that reads "nan", "inf", "1_0" and digits of every script.
    plain = re.fullmatch(r"\s*([+-]?[0-9]+(\.[0-9]*)?)\s*", value)
    return float(plain.group(1)) if plain else None


def _date(value: str) -> Optional[float]:
    try:
        date = email.utils.parsedate_to_datetime(value)
        if date.tzinfo is None:  # "-0000": the same clock, without saying where
            date = date.replace(tzinfo=datetime.timezone.utc)
        return date.timestamp()
    except (TypeError, ValueError, IndexError, OverflowError):
        return None  # no date, or one that no calendar here has
