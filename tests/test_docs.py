"""What the documentation says is what the code does, as far as a machine can compare them."""

import ast
import configparser
import inspect
import os
import pathlib
import re
import subprocess
import sys

import pytest

import syncagent
from syncagent.cancel import Cause
from syncagent.log.events import VOCABULARY
from syncagent.testing import ModelServer, call

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = pathlib.Path(syncagent.__file__).parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]

each_page = pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])


def blocks(page, language):
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def column(page, heading):
    """The words in the first column of the table below `heading`, without their quotes."""
    section = page.read_text(encoding="utf-8").split(f"{heading}\n", 1)[1]
    table = re.search(r"^\|.*?(?=^(?!\|))", section, re.DOTALL | re.MULTILINE).group()
    cells = [row.split("|")[1] for row in table.splitlines()[2:]]
    return [word for cell in cells for word in re.findall(r"`([^`]+)`", cell) or [cell.strip()]]


@each_page
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


@each_page
def test_examples_are_python_and_import_what_exists(page):
    for source in blocks(page, "python"):
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom) and node.module.startswith("syncagent"):
                names = ", ".join(alias.name for alias in node.names)
                exec(f"from {node.module} import {names}", {})


@pytest.mark.concurrent
def test_the_first_script_of_the_readme_runs(tmp_path):
    source, _ = blocks(ROOT / "README.md", "python")
    (tmp_path / "README.md").write_text("one\ntwo\nthree\n")
    script = [[call("count_lines", {"path": "README.md"})], ["It has three."]]
    with ModelServer(script) as server:
        (tmp_path / "first.py").write_text(source.replace("http://127.0.0.1:8000/v1", server.url))
        options = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}}
        command = [sys.executable, "first.py"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=True, **options)
        sent = server.requests[-1].body["messages"][-1]
    assert done.stdout == "completed It has three.\n"
    assert (sent["role"], sent["content"]) == ("tool", "3")


@pytest.mark.concurrent
def test_the_first_script_of_the_readme_runs_with_the_server_that_it_offers(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "README.md").write_text("one\n")
    source, server = blocks(ROOT / "README.md", "python")
    made = re.search(r"^model = .*$", source, re.MULTILINE).group()
    names = {}
    try:
        exec(source.replace(made, server), names)
    finally:
        names["server"].close()
        names["model"].close()
    assert capsys.readouterr().out == "completed It has more than a hundred lines.\n"


@pytest.mark.concurrent
def test_the_hook_and_the_model_of_the_agent_page_work(home):
    names = {}
    for source in blocks(ROOT / "docs" / "agent.md", "python")[1:]:
        exec(source, names)
    agent = home.agent(names["Echo"](), request=names["request"])
    assert agent.run("say  it again").text == "say it again "
    (header,) = home.events(agent, "request/header")
    assert header.body.params == {"tool_choice": "required"}


@pytest.mark.concurrent
@pytest.mark.parametrize("page", ["models", "tools", "testing"])
def test_the_examples_of_a_page_run_one_after_the_other(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = ROOT / "docs" / f"{page}.md"
    names = {"__name__": "example"}
    for source in blocks(path, "python"):
        exec(compile(source, str(path), "exec"), names)


def test_every_option_of_run_is_on_the_command_line_page_and_the_other_way_round():
    from syncagent.surface.cli.app import command_line

    words = column(ROOT / "docs" / "cli.md", "## Asking\n")
    documented = {option for word in words for option in re.findall(r"--?[\w-]+", word)}
    run = command_line().commands["run"]
    there = {option for param in run.params for option in param.opts if option.startswith("-")}
    assert documented == there - {"--db"}


def test_the_script_items_of_the_testing_page_are_all_there():
    from syncagent.testing import script

    cells = column(ROOT / "docs" / "testing.md", "one of these.\n")
    documented = {cell.partition("(")[0] for cell in cells if "(" in cell}
    made = {name for name in script.__all__ if name.islower()}
    assert documented == made


@pytest.mark.parametrize("page, kind", [("agent", syncagent.Agent), ("models", syncagent.ChatModel)])
def test_the_arguments_of_an_agent_and_of_a_model_are_on_their_pages(page, kind):
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    table = re.search(r"^\| argument \|.*?\n\n", text, re.DOTALL | re.MULTILINE).group()
    rows = table.strip().splitlines()[2:]
    documented = [word for row in rows for word in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(documented) == sorted(inspect.signature(kind).parameters)


def test_the_events_of_the_log_page_are_the_vocabulary():
    assert set(column(ROOT / "docs" / "log.md", "## Events")) == set(VOCABULARY)


def test_the_rules_of_the_log_page_are_all_there():
    text = (ROOT / "docs" / "log.md").read_text(encoding="utf-8")
    assert re.findall(r"^- \*\*(L\d+)\*\*", text, re.MULTILINE) == [f"L{number}" for number in range(1, 11)]


def test_the_causes_of_the_cancellation_page_are_the_causes():
    words = {cause.value for cause in Cause}
    text = (ROOT / "docs" / "cancellation.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) == words


def test_the_store_errors_of_the_durability_page_exist():
    names = column(ROOT / "docs" / "durability.md", "and you get the error:")
    assert "StoreFull" in names
    for name in names:
        assert hasattr(syncagent, name)


def test_every_command_of_the_command_line_page_exists_and_the_other_way_round():
    from syncagent.surface.cli.app import command_line

    documented = {command.split()[1] for command in column(ROOT / "docs" / "cli.md", "`--help` of its own.")}
    assert documented == set(command_line().commands)


def test_the_readme_has_the_two_commands_that_ci_takes_from_it():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    venv = r"^python3 -m venv \.venv && \.venv/bin/pip install -q "
    assert len(re.findall(venv + r"\. && \.venv/bin/syncagent demo$", text, re.MULTILINE)) == 1
    assert len(re.findall(venv + r"-e '\.\[test\]' && \.venv/bin/python -m pytest$", text, re.MULTILINE)) == 1


def test_the_matrix_has_every_python_that_the_package_claims():
    setup, tox = configparser.ConfigParser(), configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    tox.read(ROOT / "tox.ini")
    claimed = re.findall(r":: 3\.(\d+)$", setup["metadata"]["classifiers"], re.MULTILINE)
    tested = re.findall(r"\bpy3(\d+)\b(?!-)", tox["tox"]["env_list"])
    assert claimed == tested
