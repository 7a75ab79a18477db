"""A whole log as JSON lines."""

import pytest
from commands import NASTY, Command, clean_environment, harmless
from log_writer import Log

from syncagent.surface.cli import main


@pytest.fixture
def command(monkeypatch, tmp_path, capsys):
    clean_environment(monkeypatch, tmp_path)
    return Command(capsys, tmp_path / "runs.db")


@pytest.mark.parametrize("extra", [[], ["--format", "jsonl"]])
def test_every_event_is_a_line(command, extra):
    command.make("s1", "hi", prompt=NASTY)
    done = command("export", "s1", *extra)
    assert done.code == 0 and harmless(done.out)
    assert done.objects == [event.to_dict() for event in command.events("s1")]
    assert list(done.objects[0]) == ["seq", "time", "type", "data"]


def test_an_open_session_is_exported_as_it_stands(command):
    command.write("s1", Log().asking().chunk("half"))
    before = command.contents()
    assert command("export", "s1").objects[-1]["type"] == "assistant/chunk"
    assert command.contents() == before


def test_what_was_exported_can_be_verified(command, tmp_path, capsys):
    command.make("s1", "hi", prompt=NASTY)
    file = tmp_path / "log.jsonl"
    file.write_text(command("export", "s1").out, encoding="utf-8")
    assert main(["verify", str(file)]) == 0
    assert capsys.readouterr().out == f"balanced: {len(command.events('s1'))} events, 1 turn\n"


def test_an_unknown_session_and_an_unknown_format_are_wrong_use(command):
    assert command("export", "s1").code == 2
    assert command("export", "s1", "--format", "xml").code == 2


def test_a_damaged_log_is_exported_up_to_the_damage(command):
    command.make("s1", "hi")
    command.damage("DELETE FROM events WHERE type = 'step/start'")
    done = command("export", "s1")
    assert done.code == 3
    assert done.objects[-1]["type"] == "inbox/taken"
    assert "is damaged at event 4" in done.err
