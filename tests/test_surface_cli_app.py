"""The command as a whole: its parts, its errors, its exit codes, and the time its help takes."""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import termios

import click
import pytest
from commands import Command, Started, clean_environment, harmless, run_process
from log_writer import Log
from processes import until

from syncagent import InvalidLog, NotAStore, StoreCorrupt, StoreFull
from syncagent.surface.cli import app, main
from syncagent.surface.cli.screen import OutputFailed


@pytest.fixture
def command(monkeypatch, tmp_path, capsys):
    clean_environment(monkeypatch, tmp_path)
    return Command(capsys, tmp_path / "runs.db")


def test_help_lists_the_commands_that_are_there(capsys):
    for option in ("--help", "-h"):
        assert main([option]) == 0
        shown = capsys.readouterr().out
        assert "Usage: syncagent [OPTIONS] COMMAND [ARGS]..." in shown
        for name in ("run", "sessions", "show", "verify", "repair", "export"):
            assert f"\n  {name} " in shown


@pytest.mark.parametrize("name", app.command_line().commands)
def test_every_command_has_help_of_its_own(name, capsys):
    assert main([name, "--help"]) == 0
    assert f"Usage: syncagent {name}" in capsys.readouterr().out


def test_without_a_command_the_help_is_an_error(capsys):
    assert main([]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and "Usage: syncagent" in shown.err


def test_the_version_is_told(capsys):
    from syncagent import __version__

    assert main(["--version"]) == 0
    assert __version__ in capsys.readouterr().out


def test_help_loads_neither_the_store_nor_the_network():
    script = (
        "import sys, json; from syncagent.surface.cli import main; code = main(['--help']);"
        "print(json.dumps([code, sorted(sys.modules)]))"
    )
    # A measured program loads half of the library for the measuring.
    environ = {key: value for key, value in os.environ.items() if not key.startswith("COVERAGE_")}
    done = subprocess.run(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, timeout=60, env=environ
    )
    code, modules = json.loads(done.stdout.splitlines()[-1])
    assert code == 0
    assert not set(modules) & {"requests", "sqlite3", "sqlite_utils", "cattrs", "platformdirs", "asyncio"}
    assert not [name for name in modules if name.startswith(("syncagent.runtime", "syncagent.boundary"))]


@pytest.mark.parametrize(
    "args", [["nosuch"], ["nosuch\x1b[2J\u202e"], ["run"], ["run", "--\x9b"], ["show"], ["show", "a", "b"]]
)
def test_wrong_use_is_2_and_says_how_it_goes(args, capsys):
    assert main(args) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("Usage: syncagent") and "\nError: " in shown.err and "--help" in shown.err
    assert harmless(shown.err)


def failing(monkeypatch, error):
    def callback():
        raise error

    group = click.Group("syncagent", commands={"fail": click.Command("fail", callback=callback)})
    monkeypatch.setattr(app, "command_line", lambda: group)
    return main(["fail"])


@pytest.mark.parametrize(
    "error, code",
    [
        (InvalidLog("L3", 4, "text \x1b[2J"), 3),
        (StoreFull("full \x1b[2J", path="x"), 1),
        (StoreCorrupt("bad row", path="x", session="s", seq=3), 3),
        (StoreCorrupt("bad file", path="x"), 1),
        (NotAStore("x is no database", path="x"), 2),
        (KeyboardInterrupt(), 130),
        (click.Abort(), 130),
    ],
)
def test_every_error_has_its_exit_code_and_one_line(monkeypatch, capsys, error, code):
    assert failing(monkeypatch, error) == code
    shown = capsys.readouterr()
    assert shown.out == "" and harmless(shown.err)
    if code == 130:
        assert shown.err in ("", "\n"), "behind the ^C that a terminal shows"
    else:
        assert shown.err.startswith("Error: ") and shown.err.count("\n") == 1


def test_a_mistake_of_ours_is_not_hidden(monkeypatch):
    with pytest.raises(ZeroDivisionError):
        failing(monkeypatch, ZeroDivisionError())


def test_output_that_fails_is_said_and_a_reader_that_left_is_not(monkeypatch, capsys):
    assert failing(monkeypatch, OutputFailed(OSError(errno.ENOSPC, "No space left on device"))) == 1
    assert "Error: standard output can't be written: [Errno 28]" in capsys.readouterr().err
    assert failing(monkeypatch, OutputFailed(BrokenPipeError())) == 1
    assert capsys.readouterr().err == ""


# -- as processes ------------------------------------------------------------------------------


def long_session(command):
    command.write("s1", Log().asking().chunk("x" * 1000).says("x" * 500_000).end_step().end_turn())


@pytest.mark.concurrent
@pytest.mark.parametrize("name", ["show", "export", "verify", "--help"])
def test_a_reader_that_leaves_ends_it_quietly(command, name):
    long_session(command)
    args = [name] if name == "--help" else [name, "s1"]
    read, write = os.pipe()
    os.close(read)
    environ = {**os.environ, "SYNCAGENT_DB": command.db}
    line = [sys.executable, "-m", "syncagent", *args]
    done = subprocess.run(line, stdout=write, stderr=subprocess.PIPE, env=environ, timeout=60)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.concurrent
def test_a_full_disk_behind_standard_output_is_said_once(command):
    long_session(command)
    environ = {**os.environ, "SYNCAGENT_DB": command.db}
    for args in (["sessions"], ["export", "s1"], ["--help"]):
        with open("/dev/full", "wb") as full:
            done = subprocess.run(
                [sys.executable, "-m", "syncagent", *args], stdout=full, stderr=subprocess.PIPE, env=environ
            )
        assert done.returncode == 1
        assert done.stderr.count(b"\n") == 1 and b"No space left on device" in done.stderr


@pytest.mark.concurrent
def test_closed_streams_are_no_crash(command):
    command.make("s1", "hi")
    script = '"$0" -m syncagent sessions --db "$1" >&- 2>&- <&-'
    done = subprocess.run(["sh", "-c", script, sys.executable, command.db], timeout=60)
    assert done.returncode == 0


@pytest.mark.concurrent
@pytest.mark.once
def test_any_locale_is_enough(command):
    command.make("s1", "naïve 日本", prompt="größe")
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": ""}
    for env in (plain, {"PYTHONIOENCODING": "ascii"}):
        for args in (["show", "s1"], ["export", "s1"]):
            done = run_process(*args, db=command.db, env=env)
            assert (done.code, done.err) == (0, ""), done
            done.out.encode("ascii")
    assert "naïve 日本" in run_process("show", "s1", db=command.db, env={"PYTHONIOENCODING": "utf-8"}).out


@pytest.mark.concurrent
@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_before_there_is_a_turn_is_an_exit_code_without_a_traceback(command, number, code):
    read, write = os.pipe()
    args = ["run", "-", "-m", "x", "--base-url", "http://127.0.0.1:9"]
    with Started(*args, db=command.db, stdin=read) as started:
        os.write(write, b"half a pro")  # and the rest never comes
        until(lambda: fcntl.ioctl(read, termios.FIONREAD, b"\0" * 4) == b"\0" * 4, "the prompt is being read")
        started.signal(number)
        assert started.end() == code
        assert "Traceback" not in started.err and started.out == ""
    os.close(read)
    os.close(write)
