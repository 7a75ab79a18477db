"""The config file: what it may say, what wins over it, and what is said of a wrong one."""

import os

import pytest
from commands import Command, clean_environment, harmless

from syncagent.surface.cli import main
from syncagent.surface.cli.options import WrongUse, database
from syncagent.surface.cli.settings import Settings, config_file, read_settings
from syncagent.testing import ModelServer


@pytest.fixture(autouse=True)
def command(monkeypatch, tmp_path, capsys):
    clean_environment(monkeypatch, tmp_path)
    return Command(capsys, tmp_path / "runs.db")


def write(content):
    os.makedirs(os.path.dirname(config_file()), exist_ok=True)
    with open(config_file(), "wb") as file:
        file.write(content if isinstance(content, bytes) else content.encode())


def test_it_is_in_the_users_config_folder_and_need_not_be_there(tmp_path):
    assert config_file() == str(tmp_path / "config" / "syncagent" / "config.ini")
    assert read_settings() == Settings()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("content", ["", "# nothing\n", "[syncagent]\n", "[syncagent]\nmodel =\n"])
def test_one_that_says_nothing_sets_nothing(content):
    write(content)
    assert read_settings() == Settings()


def test_it_may_name_the_database_the_model_and_its_server(tmp_path):
    lines = ["\ufeff[syncagent]", "db = ~/a%20b.db", "model = openai:größe", "base-url: http://h:1/v1"]
    write("\r\n".join([*lines, ""]))
    wanted = Settings(db=str(tmp_path / "a%20b.db"), model="openai:größe", base_url="http://h:1/v1")
    assert read_settings() == wanted
    assert database(None) == wanted.db
    assert database("other.db") == "other.db"


@pytest.mark.concurrent
def test_flags_and_the_environment_win_over_it(monkeypatch, tmp_path, capsys):
    with ModelServer(["one", "two", "three"]) as server:
        write(f"[syncagent]\ndb = {tmp_path}/file.db\nmodel = file\nbase-url = {server.url}\n")
        assert main(["run", "hi", "-s", "s1"]) == 0
        monkeypatch.setenv("SYNCAGENT_MODEL", "openai:environment")
        monkeypatch.setenv("SYNCAGENT_DB", str(tmp_path / "environment.db"))
        assert main(["run", "hi", "-s", "s2"]) == 0
        assert main(["run", "hi", "-m", "flag", "--db", str(tmp_path / "flag.db"), "-s", "s3"]) == 0
        assert [request.body["model"] for request in server.requests] == ["file", "environment", "flag"]
    capsys.readouterr()
    monkeypatch.delenv("SYNCAGENT_DB")
    for args, session in (([], "s1"), (["--db", str(tmp_path / "environment.db")], "s2")):
        assert main(["sessions", *args]) == 0
        assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]] == [session]


WRONG = {
    "[syncagent]\nmodle = x\n": "no setting 'modle'",
    "[syncagent]\napi-key = x\n": "no setting 'api-key'",
    "[models]\nfast = x\n": "no section [models]",
    "[DEFAULT]\nmodel = x\n": "no section [DEFAULT]",
    "model = x\n": "line 1 stands before any section: begin with [syncagent]",
    "[syncagent]\nmodel = a\nmodel = b\n": "already exists",
    "[syncagent]\nnonsense \x1b[2J\n": "[line  2]",
    "[syncagent]\ndb = runs.db\n": "begin with ~/",
    b"[syncagent]\nmodel = \xff\n": "no UTF-8 text",
}


@pytest.mark.parametrize("content", WRONG, ids=repr)
def test_a_wrong_one_is_wrong_use_that_names_the_file_and_what_is_wrong(command, capsys, content):
    write(content)
    with pytest.raises(WrongUse) as caught:
        read_settings()
    assert "config.ini" in str(caught.value)
    assert " ".join(WRONG[content].split()) in " ".join(str(caught.value).split())
    assert main(["sessions"]) == 2
    assert harmless(capsys.readouterr().err)
    # Nobody who gives all by hand needs it.
    assert command("sessions").code == 0 and main(["run", "--help"]) == 0


def test_one_that_cannot_be_read_is_wrong_use():
    os.makedirs(config_file())
    with pytest.raises(WrongUse, match="can't be read: Is a directory"):
        read_settings()
