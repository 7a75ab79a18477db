"""Reading in pieces: nothing is lost between two of them, and each says how to get the next."""

import re
import threading

import pytest
from file_parts import Files, refused

from syncagent import Cancelled
from syncagent.boundary.tools.reading import MAX_BYTES


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


def whole(files, path, **values):
    """The file, put together from what the notes lead to; and how many calls that took."""
    parts, calls = [], 0
    while True:
        calls += 1
        text = files.read(path, **values)
        match = re.search(r"\n?\[[^\[]*offset=(\d+)(?:, skip=(\d+))?\]\Z", text)
        if match is None:
            return "".join([*parts, text]), calls
        cut = match.group(2) is not None
        parts.append(text[: match.start()] + ("" if cut or text[match.start()] != "\n" else "\n"))
        values.update(offset=int(match.group(1)), skip=int(match.group(2) or 0))


def test_a_small_file_comes_as_it_is(files, tmp_path):
    (tmp_path / "a").write_bytes("é\r\nzwei\n".encode())
    assert files.read("a") == "é\r\nzwei\n"
    (tmp_path / "a").write_bytes(b"no end")
    assert files.read("a") == "no end\n[the file ends here, without a newline]"
    (tmp_path / "a").write_bytes(b"")
    assert files.read("a") == "[the file is empty]"


def test_lines_are_chosen_and_the_rest_is_told(files, tmp_path):
    (tmp_path / "a").write_text("".join(f"{number}\n" for number in range(1, 5001)))
    piece = files.read("a", offset=10, limit=2)
    assert piece == "10\n11\n[lines 10 to 11; there is more: go on with offset=12]"
    assert files.read("a", offset=5000) == "5000\n"
    assert files.read("a").endswith("2000\n[lines 1 to 2000; there is more: go on with offset=2001]")
    assert "it has only 5000 lines, so there is no line 5002" in refused(files.read, "a", offset=5002)
    assert whole(files, "a") == ((tmp_path / "a").read_text(), 3)


@pytest.mark.parametrize("line", ["x" * 200_000, "é" * 100_001, "€x" * 60_000, "😀" * 50_000])
def test_a_line_that_is_too_long_comes_in_pieces_of_whole_characters(files, tmp_path, line):
    (tmp_path / "a").write_text(f"first\n{line}\nlast\n", encoding="utf-8")
    text, calls = whole(files, "a")
    assert text == f"first\n{line}\nlast\n" and calls >= 4
    assert len(files.read("a", offset=2).encode()) < MAX_BYTES + 200


def test_skipping_past_a_line_is_refused(files, tmp_path):
    (tmp_path / "a").write_text("abc\ndef\n")
    assert files.read("a", skip=2) == "c\ndef\n"
    assert "line 1 has no 4 bytes to skip" in refused(files.read, "a", skip=4)


def test_what_is_no_text_is_named_with_its_size(files, tmp_path):
    (tmp_path / "a").write_bytes(b"\x89PNG\0" * 100)
    assert "a: it is a binary file of 500 bytes" in refused(files.read, "a")
    (tmp_path / "a").write_bytes(b"fine\ncaf\xe9\n")
    assert "line 2 has the byte 0xe9" in refused(files.read, "a")
    assert "of 10 bytes" in refused(files.read, "a")


@pytest.mark.parametrize("values", [{"offset": 0}, {"limit": 0}, {"skip": -1}])
def test_numbers_that_make_no_sense_are_bad_arguments(files, values):
    assert "must be at least" in refused(files.read, "a", **values)


@pytest.mark.concurrent
def test_a_cancel_stops_the_way_to_a_line_far_down(files, tmp_path):
    with open(tmp_path / "a", "wb") as file:
        file.truncate(1 << 40)  # a hole: no end within a test's time
        file.seek(0)
        file.write(b"x" * 10_000 + b"\n")
    timer = threading.Timer(0.05, files.token.cancel)
    timer.start()
    with pytest.raises(Cancelled):
        files.read("a", offset=10)
    timer.join()
