"""What may be given as a length of time, here and wherever one is taken."""

import fractions
import threading

import pytest

from syncagent import Agent, CancellationToken, ChatModel, Store, tool
from syncagent.boundary.http.client import HttpClient
from syncagent.boundary.tools.bash import bash, bash_tool
from syncagent.seconds import LONGEST, check_seconds
from syncagent.testing import ScriptedModel

NAN, INF = float("nan"), float("inf")


def test_a_time_is_what_a_clock_can_wait():
    given = [None, 0, -1, 2, 0.5, fractions.Fraction(1, 2), True, INF, 10**400]
    assert [check_seconds("t", one) for one in given] == [None, 0, 0, 2, 0.5, 0.5, 1, LONGEST, LONGEST]
    assert LONGEST < threading.TIMEOUT_MAX


@pytest.mark.parametrize("given, kind", [("5", TypeError), ([1], TypeError), (NAN, ValueError)], ids=repr)
def test_what_is_no_time_is_refused_by_name(given, kind):
    with pytest.raises(kind, match="^t is .*seconds, not"):
        check_seconds("t", given)


@pytest.mark.parametrize("given", [0, -1, -INF], ids=repr)
def test_a_time_that_must_be_above_0_is(given):
    with pytest.raises(ValueError, match="^t is seconds above 0, not"):
        check_seconds("t", given, positive=True)


@pytest.mark.parametrize("given", [NAN, "5"], ids=repr)
def test_nothing_that_waits_takes_what_is_no_time(given, tmp_path):
    with Store(tmp_path / "runs.db") as store, CancellationToken() as token:
        with Agent(ScriptedModel([]), store=store) as agent:
            takers = [
                lambda: token.wait(given),
                lambda: token.deadline(given).__enter__(),
                lambda: agent.wait(given),
                lambda: agent.close(given),
                lambda: agent.send("x", timeout=given),
                lambda: bash_tool(timeout=given),
                lambda: bash("true", timeout=given),
                lambda: bash("true", grace=given),
                lambda: tool(timeout=given)(lambda: None),
                lambda: HttpClient(connect_timeout=given),
                lambda: HttpClient(idle_timeout=given),
                lambda: ChatModel("m", idle_timeout=given),
                lambda: ChatModel("m", max_retries=given),
            ]
            for taker in takers:
                with pytest.raises((TypeError, ValueError)) as caught:
                    taker()
                assert "not" in str(caught.value) and "supported" not in str(caught.value)
            assert agent.status == "idle"  # a close that was refused has closed nothing


@pytest.mark.concurrent
def test_a_wait_for_ever_may_be_said_in_any_way(tmp_path):
    with Store(tmp_path / "runs.db") as store:
        with Agent(ScriptedModel(["a"] * 3), store=store) as agent:
            for given in (INF, 1e300, 10**400):
                agent.send("x", timeout=given)
                assert agent.wait(given).text == "a"
                assert bash("echo x", timeout=given, grace=1e300).text == "x\n"
            assert agent.close(INF)
