"""No path leads out of a workspace: not by its names, not by a link, not by a swap while it is walked."""

import os
import socket
import stat
import threading

import pytest
from file_parts import Files, everything, refused

from syncagent import ToolError, file_tools
from syncagent.boundary.tools import workspace
from syncagent.boundary.tools.workspace import Private, Workspace, shown


@pytest.fixture
def files(tmp_path):
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (root / "a.txt").write_text("inside\n")
    (root / "sub" / "b.txt").write_text("below\n")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "b.txt").write_text("SECRET\n")
    return Files(root)


PATHS = ["../out/b.txt", "sub/../../out/b.txt", "..", "/", "/etc/passwd", "//etc/passwd", "sub/../.."]


@pytest.mark.parametrize("path", PATHS)
def test_what_leads_out_is_refused_by_every_tool(files, path):
    calls = [
        (files.read, path), (files.write, path, "x"), (files.edit, path, "a", "b"), (files.list, path),
    ]  # fmt: skip
    for fn, *args in calls:
        said = refused(fn, *args)
        assert "leads out of the workspace" in said and path in said
    assert "leads out" in refused(files.search, "x", path=path)


def test_a_sibling_whose_name_begins_alike_is_outside(files, tmp_path):
    (tmp_path / "root-2").mkdir()
    (tmp_path / "root-2" / "x").write_text("SECRET")
    assert "leads out" in refused(files.read, str(tmp_path / "root-2" / "x"))


def test_other_ways_to_say_a_path_inside_are_fine(files):
    for path in ("a.txt", "./a.txt", "sub/../a.txt", "sub//..//./a.txt", str(files.root / "a.txt")):
        assert files.read(path) == "inside\n"
    assert files.list(str(files.root)) == files.list(".") == files.list("")


def test_the_root_may_be_given_by_a_link_and_in_the_current_folder(files, tmp_path, monkeypatch):
    os.symlink(files.root, tmp_path / "link")
    other = Files(tmp_path / "link")
    assert other.read(str(tmp_path / "link" / "a.txt")) == other.read(str(files.root / "a.txt")) == "inside\n"
    monkeypatch.chdir(files.root)
    here = Files(".")
    monkeypatch.chdir("/")
    assert here.read("a.txt") == "inside\n"


@pytest.mark.parametrize("path", ["a\0b", "a\nb", "\x1b[2J", "a\ud800"])
def test_bad_names_are_refused_in_one_plain_line(files, path):
    said = refused(files.read, path)
    assert "control character" in said and said.isprintable()
    assert "control character" in refused(files.write, path, "x")
    assert sorted(everything(files.root)) == ["a.txt", "sub", "sub/b.txt"]


def test_a_name_that_is_too_long_and_one_with_an_odd_space(files):
    assert "too long" in refused(files.read, "x" * 300)
    files.write("a\u202fb", "odd")
    assert files.read("a\u202fb").startswith("odd")


def test_a_link_is_not_followed_wherever_it_stands(files, tmp_path):
    os.symlink(tmp_path / "out", files.root / "sub" / "way")
    os.symlink(tmp_path / "out" / "b.txt", files.root / "last")
    os.symlink("a.txt", files.root / "inner")
    for fn, *rest in ((files.read,), (files.write, "x"), (files.edit, "SECRET", "x")):
        assert "sub/way is a link to" in refused(fn, "sub/way/b.txt", *rest)
        assert "it is a link" in refused(fn, "last", *rest)
    assert "links are not followed" in refused(files.list, "sub/way")
    assert "a link to a.txt" in refused(files.read, "inner")
    assert (tmp_path / "out" / "b.txt").read_text() == "SECRET\n"
    assert "SECRET" not in "".join(files.search("E"))


@pytest.mark.concurrent
@pytest.mark.parametrize("what", ["middle", "last"])
def test_a_link_that_is_swapped_in_while_we_look_leads_nowhere(files, tmp_path, what):
    """Another thread exchanges a folder, or a file, for a link out and back, as fast as it can."""
    real, way = files.root / "sub", files.root / "way"
    target = tmp_path / "out"
    if what == "last":
        real, way, target = real / "b.txt", real / "way", target / "b.txt"
    os.symlink(target, way)
    done = threading.Event()

    def swap():
        spare = str(real) + ".spare"
        while not done.is_set():
            os.rename(real, spare)
            os.rename(way, real)
            os.rename(real, way)
            os.rename(spare, real)

    thread = threading.Thread(target=swap)
    thread.start()
    seen, errors = set(), 0
    try:
        for round in range(400):
            for fn, args in ((files.read, ("sub/b.txt",)), (files.edit, ("sub/b.txt", "below", "below!"))):
                try:
                    seen.add(fn(*args))
                except ToolError:
                    errors += 1
            seen.update(files.search("E", path="."))
    finally:
        done.set()
        thread.join()
    assert not [text for text in seen if "SECRET" in text]
    assert (tmp_path / "out" / "b.txt").read_text() == "SECRET\n"
    assert os.listdir(tmp_path / "out") == ["b.txt"]
    assert errors, "no call met a swap"


@pytest.mark.parametrize("tool", ["read", "write", "edit", "list", "search", "list all"])
def test_a_link_that_comes_between_look_and_opening_leads_nowhere(files, tmp_path, monkeypatch, tool):
    real, met = os.open, []

    def late(path, flags, *args, **options):
        if path == "sub" and not met:
            met.append(path)
            os.rename(files.root / "sub", files.root / "moved")
            os.symlink(tmp_path / "out", files.root / "sub")
        return real(path, flags, *args, **options)

    calls = {
        "read": (files.read, "sub/b.txt"),
        "write": (files.write, "sub/b.txt", "x"),
        "edit": (files.edit, "sub/b.txt", "SECRET", "x"),
        "list": (files.list, "sub"),
    }
    monkeypatch.setattr(os, "open", late)
    if tool == "search":
        said = "".join(files.search("SECRET"))
    elif tool == "list all":
        said = "".join(files.list(recursive=True))
    else:
        said = refused(*calls[tool])
    assert met and "SECRET" not in said
    assert ("can't be opened" in said) == (tool in ("search", "list all"))
    assert everything(tmp_path / "out") == {"b.txt": b"SECRET\n"}


def test_a_fifo_a_socket_and_a_device_are_named_and_not_opened(files):
    os.mkfifo(files.root / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        folder = os.open(files.root, os.O_RDONLY)
        try:
            server.bind(f"/proc/self/fd/{folder}/sock")  # the whole path may be too long for a socket
        finally:
            os.close(folder)
    for name, kind in (("fifo", "FIFO"), ("sock", "socket")):
        assert f"it is a {kind}" in refused(files.read, name)
        assert f"it is a {kind}" in refused(files.write, name, "x")
        assert f"it is a {kind}" in refused(files.edit, name, "x", "y")
        assert f"{name} ({kind})" in files.list()
    assert "[no match in 2 files]" in files.search("nothing")
    assert "it is a device" in refused(Files("/dev").read, "null")
    assert "it is a device" in refused(Files("/dev").write, "null", "x")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes devices and may read everything")
def test_a_device_inside_is_a_device(files):
    try:
        os.mknod(files.root / "dev", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("this container makes no devices")
    assert "it is a device" in refused(files.read, "dev")


def test_a_fifo_that_takes_the_place_of_a_file_does_not_hold_the_reader(files, monkeypatch):
    """Between the look by name and the opening: what counts is what was got, not its name."""
    real = os.open

    def late(path, flags, *args, **options):
        if path == "a.txt":
            os.unlink(files.root / "a.txt")
            os.mkfifo(files.root / "a.txt")
        return real(path, flags, *args, **options)

    monkeypatch.setattr(os, "open", late)
    assert "it is a FIFO" in refused(files.read, "a.txt")


def test_a_file_is_no_folder_and_a_folder_no_file(files):
    assert "a.txt is a file and no folder" in refused(files.read, "a.txt/b")
    assert "a.txt is a file and no folder" in refused(files.list, "a.txt")
    assert "it is a folder" in refused(files.read, "sub")
    assert "it is a folder" in refused(files.write, "sub", "x")
    assert "the workspace itself" in refused(files.read, ".")
    assert "there is no folder gone" in refused(files.read, "gone/x")
    assert "there is nothing of that name" in refused(files.read, "gone")


def test_a_root_that_was_replaced_is_noticed(files, tmp_path):
    os.rename(files.root, tmp_path / "moved")
    assert str(files.root) in refused(files.read, "a.txt")
    os.symlink(tmp_path / "out", files.root)
    assert "b.txt" not in refused(files.list)
    os.unlink(files.root)
    files.root.mkdir()
    assert "was replaced" in refused(files.list)


def test_a_root_that_is_none_is_said_when_the_tools_are_made(tmp_path):
    (tmp_path / "file").write_text("x")
    for path, said in ((tmp_path / "gone", "No such file"), (tmp_path / "file", "no folder"), ("", "path")):
        with pytest.raises(ValueError, match=said):
            file_tools(path)


def test_without_descriptors_of_folders_there_are_no_tools(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "supports_dir_fd", set())
    with pytest.raises(NotImplementedError, match="such as Linux"):
        file_tools(tmp_path)
    monkeypatch.undo()
    monkeypatch.delattr(workspace.os, "O_PATH")
    with pytest.raises(NotImplementedError, match="O_PATH"):
        file_tools(tmp_path)


# -- what is private ---------------------------------------------------------------------------


def test_private_files_are_refused_under_every_name_and_not_seen(files):
    for name in ("runs.db", "runs.db-wal"):
        (files.root / name).write_text("private\n")
    (files.root / "runs.db-runners").mkdir()
    (files.root / "runs.db-runners" / "gate").write_text("private\n")
    os.link(files.root / "runs.db", files.root / "sub" / "hard")
    path = str(files.root / "runs.db")
    mine = Files(files.root, private=[path, f"{path}-wal", f"{path}-shm", f"{path}-runners"])
    names = ["runs.db", "runs.db-wal", "runs.db-runners/gate", "sub/hard", "runs.db-shm", "RUNS.DB-SHM", path]
    for name in names:
        for fn, *rest in ((mine.read,), (mine.write, "x"), (mine.edit, "private", "x")):
            assert "belongs to the store" in refused(fn, name, *rest), name
    assert "belongs to the store" in refused(mine.list, "runs.db-runners")
    assert mine.list(recursive=True) == ["a.txt (7 bytes)", "sub/", "sub/b.txt (6 bytes)"]
    assert mine.search("private") == ["[no match in 2 files]"]
    assert files.read("runs.db") == "private\n", "without the context's word nobody knows"


def test_a_private_file_that_takes_the_place_of_another_is_never_opened(files, monkeypatch):
    """Closing a descriptor of it would drop the locks of whoever has it open in this process."""
    db = files.root / "runs.db"
    db.write_text("private\n")
    mine = Files(files.root, private=[str(db)])
    real, opened = os.open, []

    def late(path, flags, *args, **options):
        if path == "a.txt":
            os.unlink(files.root / "a.txt")
            os.link(db, files.root / "a.txt")
        fd = real(path, flags, *args, **options)
        if os.path.samestat(os.fstat(fd), os.stat(db)):
            opened.append(flags & os.O_PATH)
        return fd

    monkeypatch.setattr(os, "open", late)
    assert "belongs to the store" in refused(mine.read, "a.txt")
    assert opened == [os.O_PATH]


def test_private_things_need_not_exist(tmp_path):
    assert not Private.of(["/no/such/folder/x"]).names
    assert Private.of([str(tmp_path / "x")]).names


def test_names_are_shown_on_one_line():
    assert shown("a b ä") == "a b ä"
    assert shown("a\nb") == r"'a\nb'"


def test_a_workspace_at_the_top_holds_absolute_paths():
    assert Workspace.of("/").parts("/etc/../tmp/x") == ["tmp", "x"]


def test_nothing_stays_open(files):
    before = len(os.listdir("/proc/self/fd"))
    for path in ("a.txt", "sub", "sub/b.txt", "no/no", "../x"):
        for fn in (files.read, files.list):
            try:
                fn(path)
            except ToolError:
                pass
    assert len(os.listdir("/proc/self/fd")) == before
