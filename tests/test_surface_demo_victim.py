"""The program that the demo kills, here left alive."""

from pathlib import Path

import pytest

from syncagent import Store
from syncagent.surface.demo.victim import main
from syncagent.testing import ModelServer, assert_log

pytestmark = pytest.mark.concurrent


def test_it_drives_two_turns_when_nobody_kills_it(tmp_path: Path) -> None:
    path = str(tmp_path / "x.db")
    with ModelServer([["hello"], ["done"]]) as server:
        main([path, "s", server.url])
    with Store(path) as store:
        assert [info.turns for info in store.sessions()] == [2]
        assert_log(store, "s")
