"""A folder that file tools can't leave: each path is walked name by name, below descriptors.

No link is ever followed, and nothing is opened by a path that was checked before: whoever swaps a
name while we look gets an error, not a way out. It knows files and what is private; it knows no tool.
"""

import contextlib
import errno
import os
import stat
import unicodedata
from typing import FrozenSet, Iterator, List, NoReturn, Optional, Sequence, Tuple, Union

import attrs

from syncagent.errors import ToolError

__all__ = ["Place", "Private", "Workspace", "kind_of", "refuse", "shown", "told"]

#: A file or folder, whatever its name: device and inode.
Identity = Tuple[int, int]

_KINDS = {
    stat.S_IFDIR: "folder",
    stat.S_IFLNK: "link",
    stat.S_IFREG: "file",
    stat.S_IFIFO: "FIFO",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
}

_HINTS = {
    errno.ENOENT: "there is nothing of that name; list_files shows what there is",
    errno.ENOSPC: "the disk is full; free some space first",
    errno.EDQUOT: "the disk quota is used up; free some space first",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.EROFS: "the file system is read-only",
    errno.ENAMETOOLONG: "the name is too long",
    errno.EMFILE: "this process has too many open files; try again later",
    errno.ENFILE: "the system has too many open files; try again later",
}


def refuse(path: str, why: str) -> NoReturn:
    """Raise the `ToolError` that names the path."""
    raise ToolError(f"{shown(path)}: {why}")


@contextlib.contextmanager
def told(path: str) -> Iterator[None]:
    """What the system refuses in here becomes a `ToolError` that names the path."""
    try:
        yield
    except OSError as exc:
        number = exc.errno or 0
        why = _HINTS.get(number) or os.strerror(number)
        raise ToolError(f"{shown(path)}: {why}") from exc


def shown(name: str) -> str:
    """A name on one line: quoted and escaped where it has what could forge another line."""
    return name if name.isprintable() else ascii(name)


def kind_of(found: os.stat_result) -> str:
    return _KINDS.get(stat.S_IFMT(found.st_mode), "special file")


def identity(found: os.stat_result) -> Identity:
    return (found.st_dev, found.st_ino)


@attrs.frozen(kw_only=True)
class Private:
    """What must not be touched: known by device and inode, and by name where nothing is yet.

    Opening such a file and closing it again would drop the locks that this process holds on it, so
    that all this is decided before anything is opened.
    """

    things: FrozenSet[Identity]
    names: FrozenSet[Tuple[Identity, str]]  # the folder's identity, and the name without its case

    @classmethod
    def of(cls, paths: Sequence[str]) -> "Private":
        things, names = set(), set()
        for path in paths:
            with contextlib.suppress(OSError):  # not there (any more): then its name counts
                things.add(identity(os.lstat(path)))
            folder, name = os.path.split(path)
            with contextlib.suppress(OSError):  # without its folder there is no such name
                names.add((identity(os.stat(folder)), _folded(name)))
        return cls(things=frozenset(things), names=frozenset(names))

    def has(self, folder: Identity, name: str, found: Optional[os.stat_result]) -> bool:
        return (folder, _folded(name)) in self.names or (
            found is not None and identity(found) in self.things
        )


def _folded(name: str) -> str:
    """A name as file systems compare it that care neither for case nor for composition."""
    return unicodedata.normalize("NFC", name).casefold()


@attrs.define(kw_only=True)
class Place:
    """A name in an open folder. `path` is how the model knows it, `fd` and `here` are the folder."""

    path: str
    fd: int
    here: Identity
    name: str
    private: Private

    def look(self) -> Optional[os.stat_result]:
        """What is there, itself and not where it leads; None if nothing is. Private things are refused."""
        try:
            found: Optional[os.stat_result] = os.stat(self.name, dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            found = None
        self.check(found)
        return found

    def check(self, found: Optional[os.stat_result]) -> None:
        if self.private.has(self.here, self.name, found):
            refuse(self.path, "it belongs to the store of this session, which no tool may touch")

    @contextlib.contextmanager
    def file(self) -> Iterator[Tuple[int, os.stat_result]]:
        """The regular file of that name, open to be read, and what it is."""
        self.check(None)  # a private name, also where nothing is
        # O_PATH opens nothing yet: no FIFO waits, no device moves, no lock of the store is lost when
        # it is closed. What it names can't be swapped any more, and is then opened for good.
        handle = os.open(self.name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.fd)
        try:
            found = os.fstat(handle)
            self.check(found)
            _must_be_file(self, found)
            fd = os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        finally:
            os.close(handle)
        try:
            yield fd, found
        finally:
            os.close(fd)


def _must_be_file(place: Place, found: os.stat_result) -> None:
    kind = kind_of(found)
    if kind == "link":
        refuse(place.path, f"it is {_link(place.fd, place.name)}, and links are not followed")
    if kind == "folder":
        refuse(place.path, "it is a folder; list_files shows what is in it")
    if kind != "file":
        refuse(place.path, f"it is a {kind}, and only regular files are read and written")


def _link(fd: int, name: str) -> str:
    try:
        return f"a link to {shown(os.readlink(name, dir_fd=fd))}"
    except OSError:  # it has been replaced since
        return "a link"


@attrs.frozen(kw_only=True)
class Workspace:
    """The folder `root`, by the name it was given and by its real one."""

    root: str
    given: str
    itself: Identity

    @classmethod
    def of(cls, root: Union[str, "os.PathLike[str]"]) -> "Workspace":
        """Raises `ValueError` for what is no folder, `NotImplementedError` where it can't be confined."""
        _must_be_supported()
        path = os.fspath(root)
        if not isinstance(path, str) or not path or "\0" in path:
            raise ValueError(f"the root of file tools is the path of a folder, not {path!r}")
        real = os.path.realpath(path)
        try:
            found = os.stat(real)
        except OSError as exc:
            raise ValueError(f"the root of file tools: {path}: {os.strerror(exc.errno or 0)}") from exc
        if not stat.S_ISDIR(found.st_mode):
            raise ValueError(f"the root of file tools: {path} is no folder")
        return cls(root=real, given=os.path.abspath(path), itself=identity(found))

    def parts(self, path: str) -> List[str]:
        """The names from the root to `path`. Raises `ToolError` for what leads out, or is no path."""
        if any(unicodedata.category(char) in ("Cc", "Cs") for char in path):
            refuse(path, "the path has a control character, or what is no Unicode text: no tool takes that")
        if os.path.isabs(path):
            return self._inside(path)
        parts: List[str] = []
        for name in path.split("/"):
            if name == ".." and not parts:
                self._leads_out(path)
            if name == "..":
                parts.pop()
            elif name not in ("", "."):
                parts.append(name)
        return parts

    def _inside(self, path: str) -> List[str]:
        plain = os.path.normpath(path)
        for root in (self.root, self.given):
            if plain == root or plain.startswith(root.rstrip("/") + "/"):
                return [name for name in plain[len(root) :].split("/") if name]
        self._leads_out(path)

    def _leads_out(self, path: str) -> NoReturn:
        refuse(path, f"it leads out of the workspace {shown(self.root)}; name a path below that folder")

    @contextlib.contextmanager
    def folder(
        self, path: str, parts: Sequence[str], private: Private, made: Optional[List[Tuple[int, str]]] = None
    ) -> Iterator[int]:
        """A descriptor of the folder that `parts` lead to. With a list `made` missing folders are made,
        and each is noted there as its parent's descriptor, which the list's owner closes, and its name.
        """
        fd = self._open_root()
        try:
            for count, name in enumerate(parts, 1):
                place = Place(
                    path="/".join(parts[:count]), fd=fd, here=identity(os.fstat(fd)), name=name,
                    private=private,
                )  # fmt: skip
                below = _enter(place, path, made)
                os.close(fd)
                fd = below
            yield fd
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def place(
        self, path: str, private: Private, made: Optional[List[Tuple[int, str]]] = None
    ) -> Iterator[Place]:
        """The last name of `path` in its open folder."""
        parts = self.parts(path)
        if not parts:
            refuse(path or ".", "it is the workspace itself; name a file in it")
        with told(path), self.folder(path, parts[:-1], private, made) as fd:
            here = identity(os.fstat(fd))
            yield Place(path="/".join(parts), fd=fd, here=here, name=parts[-1], private=private)

    def _open_root(self) -> int:
        with told(self.root):
            fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        if identity(os.fstat(fd)) != self.itself:
            os.close(fd)
            refuse(self.root, "the workspace was replaced by another folder; the tools have to be made anew")
        return fd


def open_folder(fd: int, name: str) -> int:
    """A descriptor of the folder `name` in `fd`; a link is not followed."""
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)


def _enter(place: Place, path: str, made: Optional[List[Tuple[int, str]]]) -> int:
    found = place.look()
    if found is None:
        if made is None:
            refuse(path, f"there is no folder {shown(place.path)}; list_files shows what there is")
        with contextlib.suppress(FileExistsError):  # another call was faster
            os.mkdir(place.name, dir_fd=place.fd)
            made.append((os.dup(place.fd), place.name))
    elif kind_of(found) == "link":
        link = _link(place.fd, place.name)
        refuse(path, f"{shown(place.path)} is {link}, and links are not followed")
    elif kind_of(found) != "folder":
        refuse(path, f"{shown(place.path)} is a {kind_of(found)} and no folder")
    below = open_folder(place.fd, place.name)
    try:
        place.check(os.fstat(below))  # it may be another one since
    except BaseException:
        os.close(below)
        raise
    return below


def _must_be_supported() -> None:
    there = {os.open, os.stat, os.mkdir, os.unlink, os.rename, os.readlink} <= os.supports_dir_fd
    if not (there and hasattr(os, "O_PATH") and os.path.isdir("/proc/self/fd")):
        raise NotImplementedError(
            "file tools need a system with O_PATH, descriptors of folders and /proc, such as Linux:"
            " without them nothing could keep a model's paths in the workspace"
        )
