"""The ids that may name a session, and the promise that the store keeps the protocol."""

import inspect

import pytest

from syncagent.boundary.store.protocol import POINTS, Backend, check_session_id
from syncagent.boundary.store.sqlite import SQLiteStore


@pytest.mark.parametrize("session", ["a", "0", "_", "-", "s1.2-x_Y", "a.", "x" * 128])
def test_letters_digits_and_three_signs_name_a_session(session):
    assert check_session_id(session) == session


@pytest.mark.parametrize(
    "session",
    ["", ".", "..", ".a", "a/b", "a b", "a\n", "é", "a\0", "x" * 129, "a\u202eb", "\ud800", None, 7, b"a"],
)
def test_anything_else_is_refused_with_the_id_escaped(session):
    with pytest.raises(ValueError) as caught:
        check_session_id(session)
    text = str(caught.value)
    assert ascii(session)[:20] in text and text.isprintable() and text.isascii()


def test_an_endless_id_does_not_fill_the_screen():
    with pytest.raises(ValueError) as caught:
        check_session_id("/" * 100_000)
    assert len(str(caught.value)) < 400


def test_sqlite_keeps_the_protocol():
    """Every method is there, with the same arguments."""
    for name, method in inspect.getmembers(Backend, inspect.isfunction):
        if not name.startswith("_"):
            assert inspect.signature(getattr(SQLiteStore, name)) == inspect.signature(method), name


def test_the_points_are_listed_with_their_meaning():
    assert set(POINTS) == {
        "store.append",
        "store.flush",
        "store.commit.before",
        "store.commit.after",
        "store.repair.before_commit",
    }
    assert all(POINTS.values())
