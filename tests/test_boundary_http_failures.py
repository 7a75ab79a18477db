"""From what the libraries raise to one error: its code, and a text without secrets."""

import http.client
import socket
import ssl
from typing import Optional

import pytest
import requests
import urllib3.exceptions

from syncagent.boundary.http.failures import TransportError, classify, describe


def failure_of(exc: BaseException, outer: Optional[BaseException] = None) -> TransportError:
    failure = classify(exc, where="GET x", silence="limits", outer=outer)
    assert failure is not None
    return failure


@pytest.mark.parametrize(
    "url, shown",
    [
        ("https://user:pw@Example.org:8443/v1/chat?key=k#f", "https://example.org:8443/v1/chat"),
        ("http://[::1]:80/", "http://[::1]:80/"),
        ("http://host", "http://host"),
        ("user:pw@host/path", "an invalid URL"),
        ("http://host:port/", "an invalid URL"),
        ("http://[::1", "an invalid URL"),
        ("", "an invalid URL"),
    ],
)
def test_a_url_is_shown_without_what_may_be_secret(url: str, shown: str) -> None:
    assert describe(url) == shown


@pytest.mark.parametrize(
    "exc, code, retryable",
    [
        (ConnectionRefusedError(111, "Connection refused"), "connection", True),
        (OSError(113, "No route to host"), "connection", True),
        (http.client.RemoteDisconnected("gone"), "connection", True),
        (http.client.IncompleteRead(b"secret"), "connection", True),
        (http.client.BadStatusLine("secret"), "protocol", False),
        (http.client.LineTooLong("secret"), "protocol", False),
        (socket.timeout("timed out"), "timeout", True),
        (socket.gaierror(socket.EAI_AGAIN, "try again"), "connection", True),
        (socket.gaierror(socket.EAI_NONAME, "unknown"), "connection", False),
        (ssl.SSLEOFError(8, "EOF"), "connection", True),
        (ssl.SSLError(1, "wrong version"), "protocol", False),
        (ssl.SSLCertVerificationError(1, "self signed"), "certificate", False),
        (OSError("Tunnel connection failed: 407 secret"), "connection", False),
        (OSError("Tunnel connection failed: 503 secret"), "connection", True),
        (requests.exceptions.InvalidURL("secret"), "protocol", False),
        (requests.exceptions.InvalidHeader(urllib3.exceptions.InvalidHeader("secret")), "protocol", False),
        (urllib3.exceptions.LocationParseError("secret"), "protocol", False),
        (urllib3.exceptions.ProtocolError("Connection aborted.", ConnectionResetError()), "connection", True),
        (requests.exceptions.ConnectionError("secret"), "connection", True),
    ],
)
def test_each_kind_has_its_code_and_its_text_quotes_nothing(
    exc: BaseException, code: str, retryable: bool
) -> None:
    failure = failure_of(exc)
    assert (failure.code, failure.retryable) == (code, retryable)
    assert str(failure).startswith("GET x: ")
    assert "secret" not in str(failure) + str(failure.__cause__ or "")


def test_lengths_that_contradict_each_other_are_the_answers_fault() -> None:
    ours = requests.exceptions.InvalidHeader("secret")
    assert "the request can't be sent" in str(failure_of(ours))
    ours.__cause__ = urllib3.exceptions.InvalidHeader("secret")
    assert "the answer is no valid HTTP" in str(failure_of(ours))


def test_the_kind_is_found_however_deep_it_lies() -> None:
    """By `from`, as an argument, as urllib3's reason, or only as what was being handled."""
    deep = ssl.SSLCertVerificationError(1, "self signed")
    by_argument = urllib3.exceptions.SSLError(deep)
    pool = urllib3.HTTPConnectionPool("localhost")
    by_reason = urllib3.exceptions.MaxRetryError(pool, "/?secret", by_argument)
    by_context = requests.exceptions.SSLError("secret")
    by_context.__context__ = by_reason
    by_cause = requests.exceptions.ConnectionError("secret")
    by_cause.__cause__ = by_context
    failure = failure_of(by_cause)
    assert failure.code == "certificate"
    assert failure.__cause__ is deep


def test_what_was_being_handled_before_is_no_cause() -> None:
    before = ssl.SSLCertVerificationError(1, "self signed")
    exc = ConnectionRefusedError(111, "Connection refused")
    exc.__context__ = before
    assert failure_of(exc).code == "certificate"
    assert failure_of(exc, outer=before).code == "connection"


def test_our_own_bugs_are_not_failures_of_a_request() -> None:
    for exc in (AssertionError(), TypeError(), ValueError()):
        assert classify(exc, where="", silence="") is None
