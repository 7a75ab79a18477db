"""Which log ID|FILE means, and how a file of events is read."""

import io
import json
import os

import pytest
from commands import Command, clean_environment, harmless
from log_writer import Log

from syncagent import InvalidLog, SessionNotFound
from syncagent.surface.cli import main
from syncagent.surface.cli.options import WrongUse
from syncagent.surface.cli.source import opened_source, read_file

EVENT = json.dumps(Log().turn().dicts[0]).encode()


@pytest.fixture(autouse=True)
def command(monkeypatch, tmp_path, capsys):
    clean_environment(monkeypatch, tmp_path)
    monkeypatch.chdir(tmp_path)
    return Command(capsys, tmp_path / "runs.db")


def means_a_file(target, command):
    with opened_source(target, command.db) as store:
        return store is None


@pytest.mark.parametrize("target", ["-", "./x", "a/b", "/abs", "x.jsonl", "../x", "X.JSONL"])
def test_a_path_a_suffix_and_a_dash_mean_a_file_whether_it_is_there_or_not(command, target):
    assert means_a_file(target, command)


def test_a_bare_name_means_a_session_before_a_file(command, tmp_path):
    command.make("both", "hi")
    (tmp_path / "both").write_text("")
    (tmp_path / "only a file").write_text("")
    assert not means_a_file("both", command)
    assert means_a_file("only a file", command)
    with pytest.raises(SessionNotFound):
        means_a_file("neither", command)
    with pytest.raises(WrongUse, match="can't name a session"):
        means_a_file("*", command)


def test_a_file_needs_no_database(command, monkeypatch, tmp_path):
    (tmp_path / "log.jsonl").write_bytes(b"")
    assert main(["verify", "log.jsonl", "--db", str(tmp_path)]) == 0


def read(tmp_path, content):
    path = tmp_path / "log.jsonl"
    path.write_bytes(content)
    return list(read_file(str(path)))


@pytest.mark.parametrize(
    "content",
    [
        EVENT,
        EVENT + b"\n",
        b"\n  \n" + EVENT + b"\r\n\r\n\n",
        b"\xef\xbb\xbf" + EVENT + b"\n",
    ],
)
def test_blank_lines_line_ends_and_a_byte_order_mark_do_not_matter(tmp_path, content):
    (event,) = read(tmp_path, content)
    assert event.to_dict() == json.loads(EVENT)


def test_an_empty_file_is_an_empty_log(tmp_path):
    assert read(tmp_path, b"") == []


@pytest.mark.parametrize(
    "line, said",
    [
        (b"no json", "no JSON"),
        (EVENT[:-5], "no JSON"),
        (b"\xff\xfe", "no UTF-8 text"),
        (b"[" * 100_000, "no JSON"),
        (b"[1]", "an event is an object"),
        (b"3", "an event is an object"),
        (b'{"seq": "2", "time": 1, "type": "turn/start", "data": {}}', "seq is '2'"),
        (b'{"seq": 2, "time": 1, "type": "turn/start", "data": {}}', "turn is missing"),
        (b"\x00\x00\x00", "no JSON"),
    ],
)
def test_a_line_that_is_no_event_breaks_l1_at_its_place(tmp_path, line, said):
    with pytest.raises(InvalidLog) as caught:
        read(tmp_path, EVENT + b"\n\n" + line + b"\n")
    assert (caught.value.rule, caught.value.seq) == ("L1", 2)
    assert caught.value.text.startswith("line 3") and said in caught.value.text


def test_standard_input_is_read(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(EVENT)))
    assert len(list(read_file("-"))) == 1
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(WrongUse, match="standard input is closed"):
        list(read_file("-"))


def test_what_can_not_be_read_says_so_in_one_line(command, tmp_path):
    command.make("s1", "hi")
    (tmp_path / "folder.jsonl").mkdir()
    os.symlink("loop.jsonl", tmp_path / "loop.jsonl")
    cases = {
        "absent.jsonl": "there is no file absent.jsonl",
        "folder.jsonl": "folder.jsonl is a folder",
        "loop.jsonl": "loop.jsonl can't be read",
        "./runs.db": "is a database, not a file of events",
        "a/\x1b[2J": "there is no file a/",
        "nul/\0": "can't be read",
    }
    for target, said in cases.items():
        for name in ("verify", "repair"):
            done = command(name, target)
            assert (done.code, done.out) == (2, ""), target
            assert done.err.startswith("Error: ") and said in done.err and done.err.count("\n") == 1
            assert harmless(done.err)
