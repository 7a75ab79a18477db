"""The child program: what parent and child tell each other, and what it says where it can't begin."""

import json
import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, Iterator, Optional

import pytest
from processes import ROOT

from syncagent.boundary.tools import isolated_child, parcel
from syncagent.boundary.tools.isolated_child import Board, worded


@pytest.fixture
def file() -> Iterator[Any]:
    with tempfile.TemporaryFile() as file:
        yield file


def test_an_empty_board_says_nothing(file: Any) -> None:
    board = Board(file.fileno())
    assert (board.quiet, board.begun, board.cause) == (False, False, ("user", None))
    assert board.read_report() is None


def test_what_is_put_on_the_board_stands_there(file: Any) -> None:
    board, other = Board(file.fileno()), Board(file.fileno())
    board.begin()
    assert (other.quiet, other.begun) == (False, True)
    board.hush()
    board.tell_cause("hook", "why é\ud800")
    board.report({"text": "x" * 20_000})
    assert (other.quiet, other.begun, other.cause) == (True, True, ("hook", "why é\ud800"))
    assert other.read_report() == {"text": "x" * 20_000}


def test_the_longest_cause_fits(file: Any) -> None:
    board = Board(file.fileno())
    board.report({"text": "a report"})
    board.tell_cause("hook", "\U0001f600" * 10_000)
    assert board.cause == ("hook", "\U0001f600" * 600)
    assert board.read_report() == {"text": "a report"}


def test_a_report_that_is_not_complete_is_none(file: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its length comes last, so one whose writer dies on the way doesn't count."""
    board = Board(file.fileno())
    put, written = os.pwrite, []

    def dying(fd: int, data: Any, at: int) -> int:
        if written:
            raise OSError("dead")
        written.append(put(fd, data[:10], at))
        return written[0]

    monkeypatch.setattr(os, "pwrite", dying)
    with pytest.raises(OSError, match="dead"):
        board.report({"text": "x" * 100})
    assert board.read_report() is None


@pytest.mark.parametrize("data", [b"\xff" * 9000, b"\2" + b"\0" * 7 + b"\4" + b"\0" * 8183 + b"nope" * 9])
def test_what_something_else_wrote_there_is_no_report(file: Any, data: bytes) -> None:
    os.write(file.fileno(), data)
    assert Board(file.fileno()).read_report() is None


def run_child(parcel: bytes, *options: str) -> Optional[Dict[str, Any]]:
    """Run the program as a guard does, without one."""
    with tempfile.TemporaryFile() as file:
        program = "import os, sys; os.dup2(int(sys.argv[1]), 3); os.execv(sys.executable, sys.argv[2:])"
        command = [sys.executable, "-c", program, str(file.fileno())]
        command += [sys.executable, *options, isolated_child.__file__]
        done = subprocess.run(
            command, input=parcel, pass_fds=[file.fileno()], timeout=60, env={**os.environ, "PYTHONPATH": ""}
        )
        assert done.returncode == 0
        return Board(file.fileno()).read_report()


def packed(function: Any, **values: Any) -> bytes:
    job = {"function": function, "values": values, "hidden": {}, "positional": []}
    return parcel.pack(job, tool="it")


@pytest.mark.concurrent
@pytest.mark.parametrize("options", [(), ("-I",), ("-I", "-S")])
def test_it_runs_what_is_in_a_parcel(options: Any) -> None:
    assert run_child(packed(lambda text: text + "!", text="hi"), *options) == {"kind": "text", "text": "hi!"}


@pytest.mark.concurrent
def test_its_folder_hides_nothing_and_the_path_is_the_parent_s() -> None:
    report = run_child(packed(lambda: json.dumps(sys.path)))
    assert report is not None and json.loads(report["text"]) == sys.path


@pytest.mark.concurrent
@pytest.mark.parametrize(
    "data, text",
    [
        (b"", "EOFError"),
        (b"no pickle", "UnpicklingError"),
        (pickle.dumps({"tag": "cpython-27"}), "the tool's own process on cpython-27"),
    ],
)
def test_a_parcel_that_cannot_be_unpacked_is_told(data: bytes, text: str) -> None:
    report = run_child(data)
    assert report is not None and report["kind"] == "unready" and text in report["text"]


@pytest.mark.concurrent
def test_a_module_that_ends_the_process_as_it_is_imported_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ending_tools.py").write_text("def work(): pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import ending_tools

    data = packed(ending_tools.work)
    (tmp_path / "ending_tools.py").write_text("import sys\nsys.exit('not me')\n")
    assert run_child(data) == {"kind": "unready", "text": "SystemExit: not me"}


@pytest.mark.concurrent
def test_a_report_that_there_is_no_room_for_is_told() -> None:
    def work() -> str:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        return "x" * 100_000

    report = run_child(packed(work))
    text = "its result can't be handed back: OSError: [Errno 27] File too large"
    assert report == {"kind": "raised", "text": text}


@pytest.mark.concurrent
def test_a_small_function_loads_no_more_of_the_package() -> None:
    """What it loads is waited for at every call."""

    def work() -> str:
        return " ".join(name for name in sys.modules if name.startswith(("syncagent", "attr", "requests")))

    assert run_child(packed(work)) == {"kind": "text", "text": ""}


def test_an_exception_is_told_by_class_and_text() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise KeyboardInterrupt

    told = [worded(exc) for exc in (ValueError("x"), KeyError(), Silent())]
    assert told == ["ValueError: x", "KeyError", "Silent (its text can't be had)"]


def test_it_lives_in_the_package() -> None:
    assert isolated_child.__file__.startswith(ROOT)
