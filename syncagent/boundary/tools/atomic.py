"""Put a whole file in the place of another, or leave the other one: nothing in between is ever seen.

It knows places and bytes, and no tool. The new file is written beside the old one and renamed over it.
"""

import contextlib
import os
import stat
from typing import Iterator, List, Optional, Tuple

from syncagent.boundary.tools.workspace import Place, identity, kind_of, refuse
from syncagent.cancel import CancellationToken

__all__ = ["DRAFT", "replace", "undone"]

#: How the names of drafts begin. Only a process that was killed leaves one behind.
DRAFT = ".syncagent-draft-"

PIECE = 1 << 20  # bytes that are written between two looks at the token


@contextlib.contextmanager
def undone(made: List[Tuple[int, str]]) -> Iterator[None]:
    """If this ends by an exception, the folders that were made for it are taken away again."""
    try:
        yield
    except BaseException:
        for fd, name in reversed(made):
            with contextlib.suppress(OSError):  # somebody has put something into it
                os.rmdir(name, dir_fd=fd)
        raise
    finally:
        for fd, _ in made:
            os.close(fd)


def replace(place: Place, data: bytes, *, old: Optional[os.stat_result], token: CancellationToken) -> None:
    """Make `data` the content of the file at `place`. `old` is what was found there, None for nothing.

    Raises `ToolError` if something else is there by now, and `Cancelled` until the moment at which the
    new file gets its name; in both cases, and if the disk is full, the old file is as it was.
    """
    draft = f"{DRAFT}{os.urandom(8).hex()}"
    token.raise_if_cancelled()
    # A new file gets what the umask leaves, an old one's content must not be seen by more people.
    mode = 0o666 if old is None else 0o600
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(draft, flags, mode, dir_fd=place.fd)
    try:
        try:
            _fill(fd, data, old, token)
        finally:
            os.close(fd)
        token.raise_if_cancelled()
        _check_unchanged(place, old)
        os.rename(draft, place.name, src_dir_fd=place.fd, dst_dir_fd=place.fd)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):  # it has got its name
            os.unlink(draft, dir_fd=place.fd)
        raise
    with contextlib.suppress(OSError):  # the name itself: not every file system can, and it is there
        os.fsync(place.fd)


def _fill(fd: int, data: bytes, old: Optional[os.stat_result], token: CancellationToken) -> None:
    view = memoryview(data)
    while view:
        token.raise_if_cancelled()
        view = view[os.write(fd, view[:PIECE]) :]
    if old is not None:
        now = os.fstat(fd)
        if (now.st_uid, now.st_gid) != (old.st_uid, old.st_gid):
            with contextlib.suppress(PermissionError):  # then it is ours, as any new file
                os.fchown(fd, old.st_uid, old.st_gid)
        os.fchmod(fd, stat.S_IMODE(old.st_mode))  # after the owner, which takes set-id bits away
    os.fsync(fd)


def _check_unchanged(place: Place, old: Optional[os.stat_result]) -> None:
    now = place.look()
    if now is None and old is None:
        return
    if now is None or old is None or _state(now) != _state(old):
        what = "is gone" if now is None else f"is another {kind_of(now)}"
        refuse(place.path, f"it {what} since this call has looked at it; nothing was written, read it again")


def _state(found: os.stat_result) -> Tuple[object, ...]:
    return (identity(found), found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
