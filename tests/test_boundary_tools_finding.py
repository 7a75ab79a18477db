"""Listing and searching: what is found, what is left out and said so, and that a stop is prompt."""

import os
import threading

import pytest
from file_parts import Files, refused

from syncagent import Cancelled
from syncagent.boundary.tools import finding
from syncagent.boundary.tools.wildcard import Wildcard
from syncagent.boundary.tools.workspace import Workspace


@pytest.fixture
def files(tmp_path):
    (tmp_path / "b" / "deep").mkdir(parents=True)
    (tmp_path / "a.py").write_text("import os\nprint('Hello')\n")
    (tmp_path / "b" / "c.py").write_text("hello = 1\r\n")
    (tmp_path / "b" / "deep" / "d.txt").write_text("say hello, and hello\n")
    (tmp_path / "bin").write_bytes(b"hello\0")
    return Files(tmp_path)


def test_a_folder_is_listed_in_order(files):
    assert files.list() == ["a.py (25 bytes)", "b/", "bin (6 bytes)"]
    assert files.list("b", recursive=True) == ["b/c.py (11 bytes)", "b/deep/", "b/deep/d.txt (21 bytes)"]
    assert files.list("b/deep", names="*.py") == ["[nothing]"]


def test_a_list_is_filtered_and_goes_on_where_it_stopped(files):
    assert files.list(recursive=True, names="*.py") == ["a.py (25 bytes)", "b/c.py (11 bytes)"]
    assert files.list(recursive=True, names="b/*.py") == ["b/c.py (11 bytes)"]
    first = files.list(recursive=True, limit=2)
    assert first == ["a.py (25 bytes)", "b/", "[there is more: go on with offset=2]"]
    assert files.list(recursive=True, limit=2, offset=2)[:2] == ["b/c.py (11 bytes)", "b/deep/"]
    assert files.list(recursive=True, offset=4) == ["b/deep/d.txt (21 bytes)", "bin (6 bytes)"]


def test_a_name_can_not_forge_a_line(files, tmp_path):
    (tmp_path / "x\n[nothing]").write_text("hello\n")
    (tmp_path / os.fsdecode(b"\xff")).write_text("hello\n")
    assert r"'x\n[nothing]' (6 bytes)" in files.list()
    assert r"'\udcff' (6 bytes)" in files.list()
    assert len(files.search("hello")) == 5


def test_lines_are_found_with_their_numbers(files):
    assert files.search("hello") == [
        "b/c.py:1: hello = 1",
        "b/deep/d.txt:1: say hello, and hello",
        "[left out: binary files (1)]",
    ]
    assert files.search("hello", ignore_case=True, files="*.py") == [
        "a.py:2: print('Hello')",
        "b/c.py:1: hello = 1",
    ]
    assert files.search("s?y*and", wildcards=True, path="b") == ["b/deep/d.txt:1: say hello, and hello"]
    assert files.search("s?y", path="b") == ["[no match in 2 files]"]


def test_matches_go_on_where_they_stopped(files, tmp_path):
    (tmp_path / "many").write_text("match\n" * 250)
    assert files.search("match")[-2] == "[there is more: go on with offset=100]"
    assert files.search("match", offset=200)[0] == "many:201: match"
    assert len(files.search("match", offset=200)) == 51  # with the note on the binary file


def test_a_long_line_is_shown_around_its_match(files, tmp_path):
    (tmp_path / "long").write_text("x" * 5000 + "needle" + "y" * 5000 + "\n")
    (line,) = files.search("needle", files="long")
    assert "needle" in line and line.startswith("long:1: ...x") and line.endswith("y...") and len(line) < 400
    (tmp_path / "long").write_text("x" * 200_000 + "\nneedle\n")
    assert files.search("needle", files="long") == ["long:2: needle"]


def test_answers_are_bounded_in_bytes(files, tmp_path):
    (tmp_path / "many").write_text("é" * 290 + "\n" + ("é" * 290 + "\n") * 1000)
    lines = files.search("é", limit=10**6)
    assert "go on with offset" in lines[-2] and sum(len(line.encode()) for line in lines) < 70_000


def test_what_is_too_deep_or_too_much_is_left_out_and_said(files, tmp_path, monkeypatch):
    monkeypatch.setattr(finding, "MAX_DEPTH", 1)
    assert files.search("say")[-1] == "[left out: folders that lie deeper than 1 levels (1)]"
    monkeypatch.setattr(finding, "MAX_NAMES", 1)
    assert "after the first 1" in files.list()[-1]


def test_a_loop_of_links_ends(files, tmp_path):
    os.symlink("..", tmp_path / "b" / "up")
    assert "b/up -> .. (not followed)" in files.list(recursive=True)
    assert "[left out: links, which are not followed (1)]" in files.search("nowhere")


@pytest.mark.parametrize("text", ["", "a\nb", "x" * 1001])
def test_what_can_not_be_looked_for_is_said(files, text):
    assert "bad arguments for tool 'search_files'" in refused(files.search, text)
    assert "bad arguments for tool 'list_files'" in refused(files.list, names=text)


@pytest.mark.concurrent
@pytest.mark.parametrize("large", ["tree", "file", "line"])
def test_a_cancel_stops_a_search(files, tmp_path, large):
    if large == "tree":
        for number in range(2000):
            (tmp_path / "b" / f"{number:04}").write_text("x\n")
    else:
        with open(tmp_path / "huge", "wb") as file:
            file.write((b"x\n" if large == "file" else b"x") * 100_000)
            file.truncate(1 << 40)
    seen = []

    class Check:
        """Cancels once the search is in the middle."""

        def __call__(self):
            seen.append(None)
            if len(seen) == 1500 if large != "line" else len(seen) == 20:
                files.token.cancel()
            files.token.raise_if_cancelled()

    walk = finding.Walk(private=finding.Private.of(()), check=Check())
    found = walk.below(Workspace.of(tmp_path), ".", deep=True)
    with pytest.raises(Cancelled):
        finding.search_lines(
            walk, found, Wildcard.literal("zzz"), files=None, whole=False, offset=0, limit=5
        )
    found.close()
    assert len(seen) <= 1500


def test_a_cancel_stops_a_list_while_it_goes_through_the_names(files, tmp_path):
    for number in range(1000):
        (tmp_path / "b" / f"{number:04}").touch()
    seen = []

    def check():
        seen.append(None)
        if len(seen) == 1500:  # the names are known, and what they are is being looked at
            files.token.cancel()
        files.token.raise_if_cancelled()

    walk = finding.Walk(private=finding.Private.of(()), check=check)
    found = walk.below(Workspace.of(tmp_path), "b", deep=False)
    with pytest.raises(Cancelled):
        finding.list_entries(walk, found, names=Wildcard.of("no"), whole=False, offset=0, limit=5)


@pytest.mark.concurrent
def test_a_cancel_from_another_thread_stops_a_search(files, tmp_path):
    with open(tmp_path / "huge", "wb") as file:
        file.write(b"x" * 10_000)
        file.truncate(1 << 40)
    timer = threading.Timer(0.05, files.token.cancel)
    timer.start()
    with pytest.raises(Cancelled):
        files.search("zzz")
    timer.join()
