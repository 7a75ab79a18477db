"""Helpers of the command line's tests: the command in this process, and as a process of its own."""

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
import threading

from syncagent import Agent, Store
from syncagent.surface.cli import main
from syncagent.testing import ScriptedModel

#: Longer than anything here may take; a test that gets there has failed.
DEADLINE = 30.0

#: What would do something to a terminal: erase, title with BEL, clipboard, C1, overwriting, turned text.
NASTY = "a\x1b[2Jb\x1b]0;x\x07c\x1b]52;c;x\x1b\\d\x9bm\x85e\rf\u202egnp\u2066h\x00i\x7fj\u2028k"
_TERMINAL = set(range(0x20)) - {0x09, 0x0A} | set(range(0x7F, 0xA0)) | set(range(0x202A, 0x202F)) | set(
    range(0x2066, 0x206A)
) | {0x2028, 0x2029}


def harmless(text):
    """Whether nothing in the text can do anything to a terminal."""
    return not any(ord(character) in _TERMINAL for character in text)


def clean_environment(monkeypatch, tmp_path):
    """No setting of the person who runs the tests is left, and no data folder of theirs is touched."""
    for name in ("SYNCAGENT_DB", "SYNCAGENT_MODEL", "OPENAI_API_KEY", "OPENAI_BASE_URL", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path))


class Done:
    """What a command did: its exit code and what it wrote."""

    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    def __repr__(self):
        return f"<exit code {self.code}>\n{self.out}\n{self.err}"

    @property
    def lines(self):
        return self.out.splitlines()

    @property
    def objects(self):
        return [json.loads(line) for line in self.lines]


class Command:
    """The command in this process, with a database of its own."""

    def __init__(self, capsys, db):
        self.db, self._capsys = str(db), capsys

    def __call__(self, *args):
        self._capsys.readouterr()
        code = main([*args, "--db", self.db])
        return Done(code, *self._capsys.readouterr())

    def contents(self):
        """The bytes of the database's files: what is the same before and after a command that reads."""
        folder, name = os.path.split(self.db)
        found = {}
        for entry in sorted(os.listdir(folder)):
            path = os.path.join(folder, entry)
            if entry.startswith(name) and not entry.endswith("-shm") and os.path.isfile(path):
                with open(path, "rb") as file:
                    found[entry] = file.read()
        return {entry: content for entry, content in found.items() if content}

    def store(self):
        return Store(self.db)

    def make(self, session, *script, prompt="hello", **options):
        """Run one turn in a session, with a scripted model; return its result."""
        with Store(self.db) as store:
            with Agent(ScriptedModel(script), store=store, session=session, **options) as agent:
                return agent.run(prompt)

    def write(self, session, log):
        """Put a log that was written by hand into the database; nobody drives the session then."""
        with Store(self.db) as store:
            with store.create(session) as opened:
                opened.append(*[event.body for event in log.events])

    def damage(self, statement, *values):
        """Change the database behind the store's back."""
        with contextlib.closing(sqlite3.connect(self.db)) as conn:
            with conn:
                assert conn.execute(statement, values).rowcount > 0

    def events(self, session):
        with Store(self.db) as store:
            return list(store.read(session))


class Started:
    """The command as a process of its own, with what it has written so far; killed if it is left."""

    def __init__(self, *args, db, env=None, cwd=None, stdin=subprocess.DEVNULL):
        environ = {**os.environ, "SYNCAGENT_DB": str(db), **(env or {})}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "syncagent", *args],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environ,
            cwd=cwd,
        )
        self._changed = threading.Condition()
        self._written = {"out": b"", "err": b""}
        pipes = {"out": self.process.stdout, "err": self.process.stderr}
        self._threads = [threading.Thread(target=self._read, args=item) for item in pipes.items()]
        for thread in self._threads:
            thread.start()

    def _read(self, name, pipe):
        while True:
            data = pipe.read1(65536)
            with self._changed:
                self._written[name] += data
                self._changed.notify_all()
            if not data:
                return

    @property
    def out(self):
        return self._written["out"].decode()

    @property
    def err(self):
        return self._written["err"].decode()

    def wait_for(self, text, *, stream="out"):
        """Wait until the command has written the text."""
        with self._changed:
            found = self._changed.wait_for(lambda: text.encode() in self._written[stream], DEADLINE)
        assert found, f"{text!r} was not written:\n{self.out}\n{self.err}"

    def signal(self, number):
        self.process.send_signal(number)

    def end(self):
        """Wait until it has ended; return its exit code."""
        code = self.process.wait(DEADLINE)
        for thread in self._threads:
            thread.join(DEADLINE)
        return code

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        if self.process.poll() is None:
            self.process.kill()
        self.end()
        for pipe in (self.process.stdout, self.process.stderr):
            pipe.close()


def run_process(*args, db, env=None, **options):
    """Run the command in a process of its own to its end."""
    environ = {**os.environ, "SYNCAGENT_DB": str(db), **(env or {})}
    done = subprocess.run(
        [sys.executable, "-m", "syncagent", *args],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        timeout=DEADLINE,
        **options,
    )
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode())
