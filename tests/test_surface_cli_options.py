"""What commands share: where the database is, and which ids can be."""

import os

import pytest
from commands import clean_environment

from syncagent.surface.cli.options import WrongUse, check_id, database, opened_store


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    clean_environment(monkeypatch, tmp_path)


def test_the_database_is_the_named_one_or_in_the_users_data_folder(tmp_path):
    assert database("some.db") == "some.db"
    assert database(None) == str(tmp_path / "data" / "syncagent" / "syncagent.db")
    assert not (tmp_path / "data").exists()


def test_opening_a_store_makes_nothing_before_there_is_something_to_write(tmp_path):
    with opened_store(None) as store:
        assert store.sessions() == []
    with opened_store(str(tmp_path / "x.db")) as store:
        assert store.sessions() == []
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("path", ["", ":memory:", "a\0b"])
def test_a_path_that_can_be_no_file_is_wrong_use(path):
    with pytest.raises(WrongUse, match="--db"):
        with opened_store(path):
            pass


def test_a_folder_is_no_database(tmp_path):
    with pytest.raises(WrongUse, match="is a folder"):
        with opened_store(str(tmp_path)):
            pass


@pytest.mark.parametrize("id", ["../x", "/abs", "..", "", "*", "a\nb", "\x1b[2J", "a/b", "x" * 300])
def test_an_id_that_can_name_no_session_is_wrong_use_and_shown_escaped(id):
    with pytest.raises(WrongUse, match="can't name a session") as caught:
        check_id(id)
    assert "\n" not in str(caught.value) and "\x1b" not in str(caught.value)
    assert check_id("s-1.x") == "s-1.x"
