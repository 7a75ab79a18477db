"""A store's processes, made such that nobody can ask whether they live."""

import contextlib
import os
import sqlite3
from typing import Union


def put_out_of_reach(path: "Union[str, os.PathLike[str]]") -> None:
    """Enter every process that drives a session of this database as one of another machine."""
    with contextlib.closing(sqlite3.connect(str(path), timeout=60)) as conn, conn:
        conn.execute("UPDATE runners SET host = 'elsewhere', boot = 'another'")
