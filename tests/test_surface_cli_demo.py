"""The demo as a command."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.concurrent


def run(*args: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "syncagent", *args]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)


@pytest.mark.once
def test_the_demo_keeps_the_database_that_is_named(tmp_path: Path) -> None:
    path = str(tmp_path / "demo.db")
    shown = run("demo", "--db", path)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert f"Kept in {path}" in shown.stdout
    for session in ("demo-stop", "demo-crash"):
        assert run("verify", session, "--db", path).returncode == 0
    again = run("demo", "--db", path)
    assert again.returncode == 2 and "another file with --db" in again.stderr
