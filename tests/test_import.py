"""Importing does nothing: what a host program notices of it is the time it takes, and no more."""

import json
import os
import pathlib
import pkgutil
import subprocess
import sys

import pytest

import syncagent

PACKAGE = pathlib.Path(syncagent.__file__).parent

#: What is imported from outside, so that only our own doing is looked at.
OUTSIDE = [
    "attrs", "cattrs", "click", "cloudpickle", "platformdirs", "requests", "requests.adapters",
    "sqlite_utils",
]  # fmt: skip

LIBRARIES = {
    "requests", "urllib3", "sqlite_utils", "sqlite3", "click", "cattrs", "cloudpickle", "platformdirs",
}  # fmt: skip


#: Not for importing: the command, and the child program of tool processes, which runs outside of the package.
PROGRAMS = {
    "syncagent.__main__",
    "syncagent.boundary.process.guard",
    "syncagent.boundary.process.supervisor",
}


def submodules():
    found = (module.name for module in pkgutil.walk_packages([str(PACKAGE)], "syncagent."))
    return sorted(set(found) - PROGRAMS)


def python(script, *args, **environ):
    """Run `script` in a new interpreter and return the JSON that it prints.

    It writes no cache of the modules, and measures no coverage, which would load half the library.
    """
    environ = {**os.environ, **environ}
    environ = {key: value for key, value in environ.items() if not key.startswith("COVERAGE_")}
    command = [sys.executable, "-B", "-c", script, *args]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=60, check=True, text=True, env=environ)
    return json.loads(done.stdout)


WATCH = """
import atexit, importlib, json, logging, os, signal, sys, threading

package, outside, names = json.loads(sys.argv[1])
for name in outside:
    importlib.import_module(name)

seen = []
FAMILIES = "socket", "subprocess", "sqlite3", "_thread", "ctypes", "fcntl", "signal", "shutil", "tempfile"
CALLS = "fork", "posix_spawn", "exec", "system", "putenv", "unsetenv", "chdir", "mkdir", "rename", "remove"


def importing(path, flags):
    return path.endswith((".py", ".pyc", ".so")) and not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)


def watch(event, args):
    family, _, call = event.partition(".")
    if event == "open" and not importing(str(args[0]), args[2] or 0):
        seen.append(f"open {args[0]}")
    elif family in FAMILIES or (family == "os" and call in CALLS):
        seen.append(event)


class Environ(type(os.environ)):
    # Only what our own code reads: the caller above os and the mapping's own methods.
    def __getitem__(self, key):
        frame = sys._getframe(1)
        while frame.f_globals.get("__name__") in ("os", "collections.abc"):
            frame = frame.f_back
        if frame.f_code.co_filename.startswith(package):
            seen.append(f"environment {key} in {frame.f_code.co_filename}")
        return super().__getitem__(key)


def tell(owner, name):
    # Have a call of `owner.name` seen where it comes from our own code.
    real = getattr(owner, name)

    def told(*args, **kwargs):
        if sys._getframe(1).f_code.co_filename.startswith(package):
            seen.append(f"{owner.__name__}.{name}")
        return real(*args, **kwargs)

    setattr(owner, name, told)


def state():
    # What a module could change for the whole process.
    umask = os.umask(0o22)
    os.umask(umask)
    loggers = [logging.getLogger(), *map(logging.getLogger, list(logging.root.manager.loggerDict))]
    return {
        "loggers": [(one.name, str(one.handlers), one.level) for one in loggers if one.handlers or one.level],
        "signals": [repr(signal.getsignal(number)) for number in sorted(signal.valid_signals())],
        "descriptors": sorted(os.listdir("/proc/self/fd")),
        "hooks": [str(hook) for hook in (sys.excepthook, threading.excepthook, sys.unraisablehook)],
        "others": [os.getcwd(), umask, sys.getrecursionlimit(), sys.getswitchinterval(), sys.gettrace()],
    }


before = state()
os.environ.__class__ = Environ
tell(threading.Thread, "start")
tell(os, "register_at_fork")
tell(atexit, "register")
sys.addaudithook(watch)
for name in names:
    importlib.import_module(name)
watched, seen = seen, []
after = state()
print(json.dumps({
    "seen": watched,
    "changed": {key: [before[key], after[key]] for key in before if before[key] != after[key]},
    "threads": threading.active_count(),
    "modules": sorted(sys.modules),
}))
"""


def watch(names, outside=OUTSIDE):
    return python(WATCH, json.dumps([str(PACKAGE), outside, names]))


@pytest.mark.parametrize("names", [["syncagent"], submodules()], ids=["syncagent", "every module"])
def test_importing_does_nothing(names):
    """No thread, file, socket, process, signal handler, log handler; nothing of the environment is read."""
    found = watch(names)
    assert set(names) <= set(found["modules"])
    assert found["seen"] == []
    assert found["changed"] == {}
    assert found["threads"] == 1
    assert "asyncio" not in found["modules"]


@pytest.mark.parametrize(
    "statement, seen",
    [
        ("import threading; threading.Thread(target=int).start()", "Thread.start"),
        ("import socket; socket.socket().close()", "socket.__new__"),
        ("open('/dev/null').close()", "open /dev/null"),
        ("import os; os.environ.get('HOME')", "environment HOME"),
        ("import os; os.getenv('HOME')", "environment HOME"),
        ("import os; 'HOME' in os.environ", "environment HOME"),
        ("import os; os.chdir('/')", "os.chdir"),
        ("import os; os.register_at_fork(before=int)", "os.register_at_fork"),
        ("import atexit; atexit.register(int)", "atexit.register"),
        ("import sqlite3; sqlite3.connect(':memory:').close()", "sqlite3.connect"),
    ],
)
def test_the_watch_sees_what_a_module_does(tmp_path, statement, seen):
    (tmp_path / "guilty.py").write_text(statement)
    found = python(WATCH, json.dumps([str(tmp_path), [], ["guilty"]]), PYTHONPATH=str(tmp_path))
    assert any(one.startswith(seen) for one in found["seen"])


def test_the_watch_sees_handlers(tmp_path):
    (tmp_path / "guilty.py").write_text(
        "import logging, signal\n"
        "logging.getLogger('guilty').addHandler(logging.NullHandler())\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
    )
    found = python(WATCH, json.dumps([str(tmp_path), [], ["guilty"]]), PYTHONPATH=str(tmp_path))
    assert set(found["changed"]) == {"loggers", "signals"}


def test_import_syncagent_loads_nothing_from_outside_and_no_module_of_its_own():
    found = watch(["syncagent"], outside=[])
    loaded = set(found["modules"])
    assert {name for name in loaded if name.startswith("syncagent")} == {"syncagent"}
    assert not loaded & LIBRARIES


def test_the_token_and_the_log_load_no_library_but_attrs():
    found = watch(["syncagent.errors", "syncagent.cancel", "syncagent.log"], outside=[])
    assert not set(found["modules"]) & {*LIBRARIES, "socket", "ssl"}


def test_agent_loads_no_library_that_it_may_never_need():
    """An `Agent` with a scripted model, and functions as tools, needs no HTTP and no command line."""
    found = watch(["syncagent.runtime.agent"], outside=[])
    assert not set(found["modules"]) & (LIBRARIES - {"sqlite3"})


# -- the public names --------------------------------------------------------------------------


@pytest.mark.parametrize("name", syncagent.__all__)
def test_a_public_name_comes_from_its_home(name):
    value = getattr(syncagent, name)
    assert value is not None
    assert syncagent.__dict__[name] is value, "found once, it is kept"
    assert getattr(value, "__module__", "syncagent.").startswith("syncagent.")


def test_every_error_is_public():
    from syncagent import errors

    assert set(errors.__all__) <= set(syncagent.__all__)


def test_the_public_names_are_sorted_and_listed():
    assert syncagent.__all__ == sorted(syncagent.__all__)
    assert set(syncagent.__all__) <= set(dir(syncagent))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'syncagent' has no attribute 'Agnet'"):
        syncagent.Agnet
    with pytest.raises(ImportError):
        from syncagent import Agnet  # noqa: F401


def test_a_star_brings_the_public_names():
    names = {}
    exec("from syncagent import *", names)
    assert set(syncagent.__all__) <= set(names)


def test_type_checkers_see_the_same_names():
    """The imports under TYPE_CHECKING are another list of the same names; they must not drift."""
    import ast

    parsed = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    homes = {}
    for node in ast.walk(parsed):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("syncagent."):
            homes.update({alias.name: node.module for alias in node.names})
    assert set(homes) == set(syncagent.__all__)
    assert homes == {name: syncagent._HOMES.get(name, "syncagent.errors") for name in homes}


def test_the_version_is_that_of_the_distribution():
    import importlib.metadata

    assert syncagent.__version__ == importlib.metadata.version("syncagent")


def test_python_m_syncagent_is_the_command():
    command = [sys.executable, "-m", "syncagent", "--help"]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=60, check=True, text=True)
    assert "Usage: syncagent" in done.stdout


# -- forking afterwards ------------------------------------------------------------------------

FORK = """
import json, os, sys, threading
import syncagent
from syncagent import CancellationToken
assert threading.active_count() == 1
children = []
for _ in range(4):
    pid = os.fork()
    if pid == 0:
        token = CancellationToken()
        threading.Timer(0.01, token.cancel).start()
        os._exit(0 if token.wait(30) and threading.active_count() <= 2 else 1)
    children.append(pid)
print(json.dumps([os.waitpid(pid, 0)[1] for pid in children]))
"""


@pytest.mark.concurrent
def test_a_pool_of_forked_workers_can_use_what_was_imported_before():
    assert python(FORK) == [0, 0, 0, 0]
