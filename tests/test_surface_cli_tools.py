"""Which tools a name means, who has to agree, and what is said of one that isn't there."""

import os
import sys

import pytest

from syncagent import bash
from syncagent.surface.cli.options import WrongUse
from syncagent.surface.cli.tools import load_tools

MODULE = '''
from syncagent import tool

@tool(effect="read")
def look(path: str) -> str:
    """Look at it."""
    return path

def plain(path: str) -> str:
    """A function."""
    return path

def odd(*paths):
    return path

class Box:
    @tool(effect="read")
    def inner() -> str:
        """In a class."""
        return ""

number = 3
'''


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A current folder with modules, that are forgotten again."""
    files = {
        "mine.py": MODULE,
        "broken.py": "raise ValueError('no luck')",
        "leaving.py": "import sys; sys.exit(3)",
        "needy.py": "import there_is_no_such_module",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    yield
    for name in files:
        sys.modules.pop(name[: -len(".py")], None)


def wrong(*names, yes=True):
    with pytest.raises(WrongUse) as caught:
        load_tools(names, yes=yes)
    return str(caught.value)


def test_bash_and_functions_of_this_folder_are_found():
    tools = load_tools(["bash", "mine:look", "mine:plain", "mine:Box.inner"], yes=True)
    assert [tool.name for tool in tools] == ["bash", "look", "plain", "inner"]
    assert tools[0] is bash


def test_files_are_five_tools_of_this_folder_that_need_yes(folder):
    tools = load_tools(["files", "bash"], yes=True)
    names = ["read_file", "write_file", "edit_file", "list_files", "search_files", "bash"]
    assert [tool.name for tool in tools] == names
    assert "mine.py" in tools[3]()
    said = wrong("files", yes=False)
    assert "--tool files: write_file may change things (its effect is idempotent)" in said and "--yes" in said
    assert "a tool 'read_file' already" in wrong("files", "files")


def test_where_files_can_not_be_confined_that_is_wrong_use(monkeypatch):
    monkeypatch.setattr(os, "supports_dir_fd", set())
    assert "--tool files: file tools need a system" in wrong("files")


def test_no_names_are_no_tools():
    assert load_tools([], yes=False) == []


def test_what_only_reads_needs_nobodys_consent():
    assert [tool.effect for tool in load_tools(["mine:look"], yes=False)] == ["read"]


@pytest.mark.parametrize("name", ["bash", "mine:plain"])
def test_what_can_change_things_needs_yes(name):
    assert "its effect is write" in wrong(name, yes=False)
    assert "--yes" in wrong(name, yes=False)


@pytest.mark.parametrize(
    "name, said",
    [
        ("bsh", "a tool is bash, files, or module:function"),
        ("mine:", "module:function"),
        (":look", "module:function"),
        ("nowhere:x", "no module 'nowhere'"),
        ("mine.deeper:x", "no module 'mine.deeper'"),
        ("needy:x", "needy needs a module that is missing: there_is_no_such_module"),
        ("broken:x", "importing broken failed: ValueError: no luck"),
        ("leaving:x", "importing leaving failed: SystemExit"),
        ("mine:absent", "mine has no 'absent'"),
        ("mine:number", "a value of type int is neither"),
        ("..:x", "importing .. failed"),
    ],
)
def test_what_is_no_tool_is_said_in_one_line(name, said):
    assert said in wrong(name)
    assert f"--tool {name}" in wrong(name)


def test_a_function_that_a_model_can_not_call_says_why():
    assert "no tool can be made of it" in wrong("mine:odd")


def test_two_tools_of_one_name_are_refused():
    assert "a tool 'look' already" in wrong("mine:look", "mine:look")
