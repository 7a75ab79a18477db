"""The house rules that a machine can see: which layer may import what, and how large things may be."""

import ast
import functools
import pathlib
import sys

import pytest

import syncagent

ROOT = pathlib.Path(syncagent.__file__).parent
MODULES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py"))

#: From the ground up. A module may import from its own layer and from those before it.
LAYERS = ["_version", "errors", "seconds", "log", "cancel", "boundary", "runtime", "testing", "surface"]

#: The parts of `boundary`: what else each may know, beside `_version`, `errors`, `seconds` and itself.
PARTS = {
    "store": {"log", "cancel"},
    "http": {"cancel", "boundary.process"},
    "models": {"log", "cancel", "boundary.http"},
    "process": {"cancel"},
    "tools": {"log", "cancel", "boundary.process"},
}

#: `log` is pure: values and nothing that has a clock, a thread or a file.
PURE = {
    "__future__", "abc", "attr", "attrs", "bisect", "collections", "copy", "dataclasses", "decimal", "enum",
    "functools", "hashlib", "itertools", "json", "math", "operator", "re", "string", "types", "typing",
    "unicodedata",
}  # fmt: skip

#: These stand above all layers: the public names, and the command.
ABOVE = {"__init__", "__main__"}

MAX_MODULE = 400  # lines
MAX_FUNCTION = 40  # lines of its body


@functools.lru_cache(maxsize=None)
def tree(module):
    return ast.parse((ROOT / module).read_text(encoding="utf-8"), module)


def dotted(module):
    return module[: -len(".py")].replace("/", ".").replace(".__init__", "")


def imports(module):
    """Every import of the module as (line, absolute dotted name), also inside functions and `if`s.

    For `from a.b import c` that is `a.b.c` where that is a module of ours, and `a.b` elsewhere.
    """
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: relative imports hide which layer they reach"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield node.lineno, inner if is_ours(inner) else node.module


def is_ours(name):
    path = name.replace(".", "/")
    return name.startswith("syncagent.") and (
        (ROOT.parent / f"{path}.py").exists() or (ROOT.parent / path / "__init__.py").exists()
    )


def own_imports(module):
    for line, name in imports(module):
        if name == "syncagent" or name.startswith("syncagent."):
            yield line, name[len("syncagent.") :]


def layer(name):
    return name.split(".")[0]


def test_every_module_belongs_to_a_layer():
    assert {layer(dotted(module)) for module in MODULES} <= {*LAYERS, *ABOVE}


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_down_only(module):
    mine = layer(dotted(module))
    if mine in ABOVE:
        return
    wrong = []
    for line, name in own_imports(module):
        if layer(name) not in LAYERS or LAYERS.index(layer(name)) > LAYERS.index(mine):
            wrong.append(f"{module}:{line} imports syncagent.{name}")
    assert wrong == []


@pytest.mark.parametrize("module", [module for module in MODULES if module.startswith("boundary/")])
def test_the_parts_of_the_boundary_know_only_what_they_may(module):
    parts = dotted(module).split(".")
    if len(parts) < 2:
        assert list(own_imports(module)) == [], "the package itself knows nothing"
        return
    part = parts[1]
    allowed = {"_version", "errors", "seconds", f"boundary.{part}", *PARTS[part]}
    wrong = []
    for line, name in own_imports(module):
        if not any(name == one or name.startswith(f"{one}.") for one in allowed):
            wrong.append(f"{module}:{line} imports syncagent.{name}")
    assert wrong == []


@pytest.mark.parametrize("module", [module for module in MODULES if layer(dotted(module)) == "log"])
def test_the_log_is_pure(module):
    wrong = []
    for line, name in imports(module):
        if layer(name) != "syncagent" and layer(name) not in PURE:
            wrong.append(f"{module}:{line} imports {name}")
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in {"open", "print", "input", "exec", "eval", "__import__"}:
                wrong.append(f"{module}:{node.lineno} calls {node.func.id}")
    assert wrong == []


@pytest.mark.parametrize("module", MODULES)
def test_only_the_store_knows_sqlite(module):
    """PostgreSQL comes second: nothing outside the store's folder may lean on the first one."""
    if module.startswith("boundary/store/"):
        return
    text = (ROOT / module).read_text(encoding="utf-8")
    for word in ("sqlite3", "sqlite_utils", "PRAGMA"):
        assert word not in text, f"{module} mentions {word}"


@pytest.mark.parametrize("module", MODULES)
def test_there_is_no_event_loop_and_no_token_in_thin_air(module):
    """A token is an argument. The HTTP adapter alone binds a request to its thread while it is sent."""
    wrong = []
    for line, name in imports(module):
        if layer(name) in {"asyncio", "anyio", "trio", "curio"}:
            wrong.append(f"{module}:{line} imports {name}")
    for node in ast.walk(tree(module)):
        if isinstance(node, (ast.AsyncFunctionDef, ast.Await, ast.AsyncWith, ast.AsyncFor)):
            wrong.append(f"{module}:{node.lineno} is async")
        is_local = isinstance(node, ast.Attribute) and ast.unparse(node) == "threading.local"
        is_import = isinstance(node, ast.ImportFrom) and any(alias.name == "local" for alias in node.names)
        if (is_local or is_import) and module != "boundary/http/adapter.py":
            wrong.append(f"{module}:{node.lineno} uses threading.local")
        if isinstance(node, ast.Global):
            wrong.append(f"{module}:{node.lineno} changes module state")
    assert wrong == []


@pytest.mark.parametrize("module", MODULES)
def test_modules_and_functions_are_short_enough_to_read(module):
    source = (ROOT / module).read_text(encoding="utf-8")
    lines = len(source.splitlines())
    wrong = [f"{module} has {lines} lines: it is two modules"] if lines > MAX_MODULE else []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            length = function_length(node)
            if length > MAX_FUNCTION:
                wrong.append(f"{module}:{node.lineno} {node.name} has {length} lines")
    assert wrong == []


def function_length(node):
    """The lines of its body, without its docstring and the functions in it: those count by themselves."""
    body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
    if not body:
        return 0
    inner = [
        one.end_lineno - one.lineno + 1
        for one in body
        if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
    ]
    return node.end_lineno - body[0].lineno + 1 - sum(inner)


@pytest.mark.parametrize("module", MODULES)
def test_a_module_begins_by_saying_what_it_is(module):
    parsed = tree(module)
    if parsed.body:
        assert ast.get_docstring(parsed), f"{module} has no docstring"


def test_the_code_is_written_for_the_oldest_python():
    for module in MODULES:
        source = (ROOT / module).read_text(encoding="utf-8")
        ast.parse(source, module, feature_version=(3, 9))
    assert sys.version_info >= (3, 9)
