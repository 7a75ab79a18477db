"""One test file for each module, so that it is known where a module's behaviour is proved."""

import pathlib
import subprocess

import pytest

import syncagent

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = pathlib.Path(syncagent.__file__).parent

#: Modules whose proof stands elsewhere, because they only make sense from outside.
ELSEWHERE = {
    "__main__.py": "test_import.py",
    "_version.py": "test_import.py",
}


def modules():
    """The package's modules: those that git knows, or without git all that are there."""
    command = ["git", "ls-files", "--", "syncagent/*.py"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        names = [name[len("syncagent/") :] for name in listed.stdout.split()]
    except FileNotFoundError:
        names = []
    if not names:
        names = [path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py")]
    return sorted(name for name in names if not name.endswith("__init__.py"))


@pytest.mark.parametrize("module", modules())
def test_a_module_has_a_test_file(module):
    wanted = ELSEWHERE.get(module, f"test_{module[: -len('.py')].replace('/', '_')}.py")
    assert (ROOT / "tests" / wanted).exists(), f"syncagent/{module} has no tests/{wanted}"


def test_the_list_is_not_empty():
    assert "cancel.py" in modules()
