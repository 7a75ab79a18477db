"""The exception tree: whom to catch, what an error says and holds."""

import copy
import pickle
import re

import pytest

import syncagent.errors
from syncagent.cancel import Cancelled
from syncagent.errors import (
    AgentClosed,
    ForkedStore,
    InvalidLog,
    LeaseLost,
    ModelError,
    NotAStore,
    SessionExists,
    SessionLive,
    SessionNotFound,
    SessionOpenTurn,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFailed,
    StoreFull,
    StoreReadOnly,
    StoreReplaced,
    StoreTooNew,
    SyncagentError,
    ToolError,
    WALUnavailable,
)

#: One of each, with the texts and values that must be found in what it says.
ERRORS = [
    (AgentClosed("the agent is closed"), ["closed"]),
    (InvalidLog("L7", 12, "the step ends with call c1 open"), ["L7", "12", "call c1 open"]),
    (SessionLive("s1", 4711, "host", 1_700_000_000_000), ["'s1'", "4711", "host", "2023-11-14 22:13:20 UTC"]),
    (SessionLive("s1", 4711, "host", 1_700_000_000_000, known=False), ["can't be asked", "with steal"]),
    (SessionOpenTurn("s1", 3), ["'s1'", "turn 3", "inspect()"]),
    (SessionNotFound("s1", "runs.db"), ["'s1'", "runs.db"]),
    (SessionExists("s1", "runs.db"), ["'s1'", "runs.db"]),
    (ModelError("slow down", code="rate_limit", retryable=True, retry_after=2.5), ["slow down"]),
    (ToolError("no such file", code="TOOL_FAILED"), ["no such file"]),
    (StoreError("broken", path="runs.db"), ["broken"]),
    (StoreFull("full", path="runs.db"), ["full"]),
    (StoreFailed("failed", path="runs.db"), ["failed"]),
    (StoreReadOnly("read only", path="runs.db"), ["read only"]),
    (StoreBusy("busy", path="runs.db"), ["busy"]),
    (StoreReplaced("replaced", path="runs.db"), ["replaced"]),
    (StoreCorrupt("damaged", path="runs.db", session="s1", seq=5), ["damaged"]),
    (StoreTooNew("too new", path="runs.db", version=9), ["too new"]),
    (NotAStore("another's", path="runs.db"), ["another's"]),
    (ForkedStore("forked", path="runs.db"), ["forked"]),
    (LeaseLost("lost", path="runs.db", session="s1"), ["lost"]),
    (WALUnavailable("no WAL here", path="runs.db"), ["no WAL"]),
]

each = pytest.mark.parametrize("error, says", ERRORS, ids=[type(error).__name__ for error, _ in ERRORS])


def test_every_error_is_tried_here():
    assert {type(error).__name__ for error, _ in ERRORS} == set(syncagent.errors.__all__) - {"SyncagentError"}


@each
def test_an_error_says_what_a_person_needs(error, says):
    for text in says:
        assert text in str(error)


@each
def test_except_syncagent_error_catches_it(error, says):
    with pytest.raises(SyncagentError):
        raise error


@each
@pytest.mark.parametrize("again", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_an_error_survives_copying_and_the_way_between_processes(error, says, again):
    other = again(error)
    assert type(other) is type(error)
    assert str(other) == str(error)
    assert other.args == error.args
    assert other.__dict__ == error.__dict__


def test_store_errors_know_their_file():
    for error, _ in ERRORS:
        if isinstance(error, StoreError):
            assert error.path == "runs.db"


def test_the_data_of_an_error_is_in_attributes():
    by_type = {type(error): error for error, _ in ERRORS}
    live = by_type[SessionLive]
    assert (live.session, live.pid, live.host, live.since) == ("s1", 4711, "host", 1_700_000_000_000)
    broken = by_type[InvalidLog]
    assert (broken.rule, broken.seq, broken.text) == ("L7", 12, "the step ends with call c1 open")
    model = by_type[ModelError]
    assert (model.code, model.retryable, model.retry_after) == ("rate_limit", True, 2.5)
    corrupt = by_type[StoreCorrupt]
    assert (corrupt.session, corrupt.seq) == ("s1", 5)
    assert by_type[StoreTooNew].version == 9
    assert by_type[LeaseLost].session == "s1"
    assert (by_type[SessionOpenTurn].session, by_type[SessionOpenTurn].turn) == ("s1", 3)


def test_a_tools_own_error_is_tool_failed_and_a_models_error_is_not_retried_unless_it_says_so():
    assert ToolError("no such file").code == "TOOL_FAILED"
    error = ModelError("bad request", code="bad_request")
    assert (error.retryable, error.retry_after) == (False, None)


def test_a_stop_is_no_error():
    assert not issubclass(Cancelled, Exception)
    assert not issubclass(Cancelled, SyncagentError)


def test_the_tree_in_the_docstring_is_the_tree_of_the_classes():
    documented = re.findall(r"^( *)[├└]── (\w+)", syncagent.errors.__doc__, re.MULTILINE)
    assert {name for _, name in documented} == set(syncagent.errors.__all__) - {"SyncagentError"}
    for indent, name in documented:
        (base,) = getattr(syncagent.errors, name).__bases__
        assert base is (SyncagentError if len(indent) == 4 else StoreError)
