"""An order carries every text that a program can get, in any locale, and refuses all others."""

import json
import os
from typing import Any

import pytest

from syncagent.boundary.process.order import encode


def order(argv: Any = ("true",), **options: Any) -> Any:
    given = {"cwd": "/", "env": {}, "grace": 0.5, "linger": 0.1, **options}
    return json.loads(encode(argv, given["cwd"], given["env"], given["grace"], given["linger"]))


def test_bytes_arrive_as_they_are() -> None:
    text = "größe 😀 \udcff\n"
    made = order(["echo", text], env={"Ä": text}, cwd="/" + text)
    assert made["argv"][1].encode("latin-1") == os.fsencode(text)
    assert made["env"] == [[os.fsencode("Ä").decode("latin-1"), made["argv"][1]]]
    assert made["cwd"] == "/" + made["argv"][1]


def test_folder_and_environment_default_to_those_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOMETHING", "set")
    made = order(cwd=None, env=None)
    assert made["cwd"].encode("latin-1") == os.getcwdb()
    assert ["SOMETHING", "set"] in made["env"]


@pytest.mark.parametrize(
    "argv, options, text",
    [
        ([], {}, "argv"),
        ("ls -l", {}, "argv"),
        (["a\0b"], {}, "NUL"),
        (["a\ud800"], {}, "surrogate"),
        (["a"], {"env": {"A=B": "x"}}, "environment"),
        (["a"], {"env": {"": "x"}}, "environment"),
        (["a"], {"env": {"A": "x\0"}}, "NUL"),
        (["a"], {"cwd": "/\0"}, "NUL"),
        (["a"], {"grace": -1}, "grace"),
        (["a"], {"grace": float("nan")}, "grace"),
        (["a"], {"linger": float("inf")}, "linger"),
    ],
)
def test_what_no_program_can_get_is_refused(argv: Any, options: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        order(argv, **options)
