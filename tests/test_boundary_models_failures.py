"""What a provider's error means."""

import email.utils
import json

import pytest

from syncagent.boundary.models.failures import error_of_object, error_of_status, retry_after

NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    "status, body, code, retryable",
    [
        (400, {"error": {"message": "no"}}, "bad_request", False),
        (400, {"error": {"message": "x", "code": "context_length_exceeded"}}, "context_overflow", False),
        (400, {"error": {"message": "This model's maximum context length is 8"}}, "context_overflow", False),
        (413, b"prompt is too long: 9 tokens > 8", "context_overflow", False),
        (401, {"error": {"message": "who?"}}, "authentication", False),
        (403, b"", "authentication", False),
        (402, b"", "insufficient_quota", False),
        (404, {"detail": "Not Found"}, "not_found", False),
        (405, b"", "bad_request", False),
        (408, b"", "overloaded", True),
        (409, b"", "server_error", True),
        (422, {"detail": [{"msg": "bad"}]}, "bad_request", False),
        (429, {"error": {"message": "slow", "type": "requests"}}, "rate_limit", True),
        (429, {"error": {"message": "pay", "code": "insufficient_quota"}}, "insufficient_quota", False),
        (429, {"error": {"message": "pay", "type": "insufficient_quota"}}, "insufficient_quota", False),
        (500, b"<html>oops</html>", "server_error", True),
        (502, b"\xff\xfe", "server_error", True),
        (503, b"", "overloaded", True),
        (504, b"", "server_error", True),
        (529, {"error": {"type": "overloaded_error", "message": "busy"}}, "overloaded", True),
    ],
)
def test_an_http_status_says_code_and_whether_to_try_again(status, body, code, retryable):
    error = error_of_status(status, body=body)
    assert (error.code, error.retryable) == (code, retryable)
    assert str(error).startswith(f"HTTP {status}")


@pytest.mark.parametrize(
    "error, code, retryable",
    [
        ({"message": "x", "type": "overloaded_error"}, "overloaded", True),
        ({"message": "x", "type": "server_error"}, "server_error", True),
        ({"message": "x", "code": 429}, "rate_limit", True),
        ({"message": "x", "code": "rate_limit_exceeded"}, "rate_limit", True),
        ({"message": "x", "code": "503"}, "overloaded", True),
        ({"message": "x", "type": "invalid_request_error"}, "bad_request", False),
        ({"message": "x", "type": "NotFoundError", "code": 404}, "not_found", False),
        ({"message": "x", "code": "invalid_api_key"}, "authentication", False),
        ({"message": "x", "type": "insufficient_quota"}, "insufficient_quota", False),
        (
            {"message": "x", "type": "invalid_request_error", "code": "context_length_exceeded"},
            "context_overflow",
            False,
        ),
        ({"type": "error", "error": {"type": "overloaded_error", "message": "x"}}, "overloaded", True),
        ({"message": "x"}, "server_error", True),
        ("x", "server_error", True),
    ],
)
def test_an_error_inside_a_stream_is_classified_as_its_status_would_be(error, code, retryable):
    found = error_of_object(error)
    assert (found.code, found.retryable) == (code, retryable)
    assert str(found) == "the provider reported an error: x"


@pytest.mark.parametrize(
    "body, message",
    [
        ({"error": {"message": "a  b\nc"}}, "a b c"),
        ({"error": "plain"}, "plain"),
        ({"message": "top"}, "top"),
        ([{"error": {"message": "listed"}}], "listed"),
        ({"error": {"message": {"deep": 1}}}, '{"deep": 1}'),
        (b"not json", "not json"),
        ("[" * 100_000, "[" * 499 + "…"),
        ("7", "7"),
        ("[]", "[]"),
        ("null", "None"),
        (b"", ""),
        ({"error": {"message": "y" * 1000}}, "y" * 499 + "…"),
    ],
)
def test_the_providers_words_are_found_in_any_form_of_body(body, message):
    if isinstance(body, (dict, list)):
        body = json.dumps(body)
    shown = str(error_of_status(500, reason="Oops", body=body))
    assert shown == "HTTP 500 Oops" + (f": {message}" if message else "")


def test_secrets_go_before_a_text_is_cut():
    text = "y" * 495 + "sk-secret"
    failure = error_of_status(401, body=text, redact=lambda words: words.replace("sk-secret", "[redacted]"))
    assert "sk-" not in str(failure)


def test_the_wait_that_the_provider_asks_for_is_kept():
    assert error_of_status(429, headers={"Retry-After": "7"}).retry_after == 7
    assert error_of_object({"code": 429}, headers={"retry-after": "1.5"}).retry_after == 1.5
    assert error_of_status(429).retry_after is None


#: A longer wait is no less a wait: the turn ends with an error that says so.
YEAR = 366 * 24 * 3600


def date(seconds):
    return email.utils.formatdate(NOW + seconds, usegmt=True)


@pytest.mark.parametrize(
    "value, seconds",
    [
        ("2", 2.0),
        ("1.5", 1.5),
        (" 3 ", 3.0),
        ("0", 0.0),
        (date(90), 90.0),
        (email.utils.formatdate(NOW + 90, localtime=False), 90.0),
        (date(-90), 0.0),
        ("-5", 0.0),
        ("abc", None),
        ("", None),
        ("Fri, 31 Dec 99999 23:59:59 GMT", None),
        ("Fri, 31 Dec 9999 23:59:59 GMT", YEAR),
        ("NaN", None),
        ("inf", None),
        ("-inf", None),
        ("1e3", None),
        ("1_0", None),
        ("٣", None),
        ("9" * 400, YEAR),
        ("99999999999", YEAR),
        ("2, 3", None),
    ],
)
def test_retry_after_is_seconds_or_a_date_and_never_an_exception(value, seconds):
    assert retry_after({"Retry-After": value}, now=NOW) == seconds


def test_retry_after_in_milliseconds_is_more_exact_and_wins():
    assert retry_after({"retry-after-ms": "250", "Retry-After": "1"}) == 0.25
    assert retry_after({"retry-after-ms": "soon", "Retry-After": "1"}) == 1


def test_a_date_counts_from_now():
    import time

    wait = retry_after({"Retry-After": email.utils.formatdate(time.time() + 100, usegmt=True)})
    assert 90 < wait <= 100
