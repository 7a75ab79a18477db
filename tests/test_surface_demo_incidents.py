"""The demo plays its incidents for real, so this is a test of the whole."""

import re
from pathlib import Path
from typing import List

import pytest

from syncagent import Store
from syncagent.errors import SessionExists
from syncagent.surface.demo.incidents import Demo
from syncagent.testing import assert_log

pytestmark = pytest.mark.concurrent


def test_the_three_incidents_are_played_and_leave_valid_logs(tmp_path: Path) -> None:
    said: List[str] = []
    path = str(tmp_path / "demo.db")
    Demo(path, folder=str(tmp_path), say=said.append).play()
    text = "\n".join(said)
    assert re.search(r"1\. The stop.*2\. kill -9.*3\. The contrast", text, re.S)
    assert "call_1: ABORTED" in text and "cut, kept: “The build was stopped" in text
    assert "TOOL_OUTCOME_UNKNOWN" in text and "TOOL_NOT_STARTED" in text
    assert re.search(r"- \d+ of \d+ events and \d+ bytes would be gone", text)
    assert (tmp_path / "ledger.txt").read_text() == "invoice 17\n"
    with Store(path) as store:
        assert sorted(info.id for info in store.sessions()) == ["demo-crash", "demo-stop"]
        for info in store.sessions():
            assert_log(store, info.id)
    with pytest.raises(SessionExists):
        Demo(path, folder=str(tmp_path), say=said.append).play()
