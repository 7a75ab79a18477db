"""The file tools as a model sees them, and in an agent: its own store is not theirs to touch."""

import os

import pytest
from file_parts import Files, refused
from runtime_parts import results

from syncagent import CancellationToken, Cancelled, ToolError, file_tools
from syncagent.testing import call


def test_the_model_sees_five_tools_with_their_effects(tmp_path):
    tools = {tool.name: tool for tool in file_tools(tmp_path)}
    assert {name: tool.effect for name, tool in tools.items()} == {
        "read_file": "read",
        "write_file": "idempotent",
        "edit_file": "write",
        "list_files": "read",
        "search_files": "read",
    }
    assert [name for name, tool in tools.items() if tool.exclusive] == ["write_file", "edit_file"]
    assert tools["edit_file"].spec()["parameters"]["required"] == ["path", "old", "new"]
    for tool in tools.values():
        assert tool.description and "context" not in tool.spec()["parameters"]["properties"]
        assert all(one["description"] for one in tool.spec()["parameters"]["properties"].values())


def test_they_can_be_called_as_functions(tmp_path):
    read, write, edit, listed, search = file_tools(str(tmp_path))
    write("a", "one\n")
    edit("a", "one", "two")
    assert (read("a"), listed(), search("w")) == ("two\n", "a (4 bytes)", "a:1: two")


def test_a_cancelled_call_does_nothing(tmp_path):
    with CancellationToken() as token:
        token.cancel()
        files = Files(tmp_path, token=token)
        for fn, *args in (
            (files.read, "a"),
            (files.write, "a", "b"),
            (files.edit, "a", "b", "c"),
            (files.list,),
            (files.search, "a"),
        ):
            with pytest.raises(Cancelled):
                fn(*args)
    assert os.listdir(tmp_path) == []


def test_bad_numbers_and_types_never_reach_a_file(tmp_path):
    (read, *_) = file_tools(tmp_path)
    with pytest.raises(ToolError, match="'limit'"):
        read.parse('{"path": "a", "limit": "9"}')
    assert "'offset' must be at least 0" in refused(Files(tmp_path).list, offset=-1)


@pytest.mark.concurrent
def test_an_agent_s_own_store_is_refused_and_unseen(home, tmp_path):
    calls = [
        call("read_file", {"path": "runs.db"}),
        call("write_file", {"path": "runs.db", "content": "x"}),
        call("edit_file", {"path": "runs.db-wal", "old": "a", "new": "b"}),
        call("read_file", {"path": "runs.db-shm"}),
        call("write_file", {"path": "runs.db-journal", "content": "x"}),
        call("list_files", {"path": "runs.db-runners"}),
        call("write_file", {"path": "runs.db-runners/gate", "content": "x"}),
        call("write_file", {"path": "mine.txt", "content": "ok\n"}),
        call("list_files", {"recursive": True}),
        call("search_files", {"text": "SQLite"}),
    ]
    agent = home.agent([calls, "done"], tools=file_tools(tmp_path), max_parallel=1)
    assert agent.run("go").text == "done"
    *refusals, written, listed, searched = results(home.events(agent)).values()
    for code, text in refusals:
        assert code == "TOOL_FAILED" and "belongs to the store of this session" in text
    assert written == (None, "wrote 3 bytes to mine.txt (new file)")
    assert listed == (None, "mine.txt (3 bytes)")
    assert searched == (None, "[no match in 1 file]")


@pytest.mark.concurrent
def test_two_edits_of_one_file_in_one_step_both_count(home, tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "a").write_text("one two\n")
    edits = [
        call("edit_file", {"path": "a", "old": "one", "new": "1"}),
        call("edit_file", {"path": "a", "old": "two", "new": "2"}),
    ]
    agent = home.agent([edits, "done"], tools=file_tools(tmp_path / "work"))
    assert agent.run("go").text == "done"
    assert (tmp_path / "work" / "a").read_text() == "1 2\n"
