"""The child's side of a lookup: it takes the runtime's surroundings and answers as `getaddrinfo` does."""

import json
import os
import pathlib
import socket
from typing import Any

import pytest
from test_boundary_process_client import in_fork

from syncagent.boundary.process import lookup
from syncagent.boundary.process.order import encode_lookup


def asked(host: str) -> Any:
    return json.loads(lookup.answer(json.loads(encode_lookup(host, 80))))


def test_an_answer_has_what_getaddrinfo_gave_in_its_order() -> None:
    expected = socket.getaddrinfo("::1", 80, 0, socket.SOCK_STREAM)
    assert asked("::1") == {"addresses": json.loads(json.dumps(expected))}


def test_an_error_has_its_number_and_text() -> None:
    kind, number, text = asked("a..b")["error"]
    assert (kind, bool(text)) == ("resolver", True)
    assert number in (socket.EAI_NONAME, socket.EAI_AGAIN, socket.EAI_FAIL)


@pytest.mark.concurrent
def test_the_child_has_the_environment_and_the_folder_of_the_order(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RES_OPTIONS", "attempts:1")
    order = json.loads(encode_lookup("localhost", 80))
    monkeypatch.undo()

    def work() -> None:
        os.environ["LOCALDOMAIN"] = "of.the.supervisor"
        lookup.enter(order)
        assert os.environ["RES_OPTIONS"] == "attempts:1"
        assert "LOCALDOMAIN" not in os.environ
        assert os.getcwd() == str(tmp_path)
        lookup.enter({**order, "cwd": "/no/such/folder"})

    assert in_fork(work) == 0
