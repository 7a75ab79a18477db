"""How a host's own code is called, and what it may answer."""

import attrs
import pytest

from syncagent.boundary.models.protocol import ModelRequest
from syncagent.cancel import CancellationToken, Cancelled
from syncagent.runtime.hooks import (
    Continue,
    HookFailed,
    Hooks,
    PreStep,
    Reject,
    RequestStep,
    TurnStopping,
    ask,
)


@pytest.fixture
def token():
    with CancellationToken() as made:
        yield made


def test_no_hook_and_none_mean_go_on(token):
    assert ask("pre_step", None, "view", token, Reject) is None
    assert ask("pre_step", lambda view, *, token: None, "view", token, Reject) is None


def test_a_hook_gets_the_view_and_the_token(token):
    seen = []
    ask("pre_step", lambda view, *, token: seen.append((view, token)), "view", token)
    assert seen == [("view", token)]


def test_an_answer_of_an_allowed_kind_comes_back(token):
    answer = ask("x", lambda view, *, token: Continue("more"), "view", token, Reject, Continue)
    assert answer == Continue("more")


@pytest.mark.parametrize("answer", [True, "no", Continue("x"), Reject], ids=repr)
def test_any_other_answer_is_a_failure_that_says_what_is_allowed(token, answer):
    with pytest.raises(HookFailed, match="pre_step returned .*, not None or Reject"):
        ask("pre_step", lambda view, *, token: answer, "view", token, Reject)


def test_an_exception_is_a_failure_that_keeps_its_cause(token):
    def hook(view, *, token):
        raise KeyError("x")

    with pytest.raises(HookFailed, match="request raised KeyError: 'x'") as caught:
        ask("request", hook, "view", token)
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_hook_of_the_wrong_signature_is_a_failure(token):
    with pytest.raises(HookFailed, match="TypeError"):
        ask("pre_step", lambda view: None, "view", token)


@pytest.mark.parametrize("exc", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_is_no_exception_passes(token, exc):
    def hook(view, *, token):
        raise exc

    with pytest.raises(exc):
        ask("pre_step", hook, "view", token)


def test_a_cancelled_token_calls_no_hook(token):
    token.cancel()
    called = []
    with pytest.raises(Cancelled):
        ask("pre_step", lambda view, *, token: called.append(1), "view", token)
    assert called == []


def test_a_stop_while_the_hook_runs_is_seen_whatever_it_answers(token):
    def hook(view, *, token):
        token.cancel()
        return "nonsense"

    with pytest.raises(Cancelled) as caught:
        ask("pre_step", hook, "view", token, Reject)
    assert caught.value.token is token


def test_the_prompt_is_a_text_or_a_function_of_the_token(token):
    assert Hooks(system="Be brief.").prompt(token) == "Be brief."
    seen = []
    assert Hooks(system=lambda *, token: seen.append(token) or "Made.").prompt(token) == "Made."
    assert seen == [token]


@pytest.mark.parametrize("answer", [None, b"x", 5], ids=repr)
def test_a_prompt_that_is_no_text_is_a_failure(token, answer):
    with pytest.raises(HookFailed, match="not a string"):
        Hooks(system=lambda *, token: answer).prompt(token)


def test_what_hooks_see_cannot_be_changed():
    views = [
        PreStep(session="s", turn=1, step=1, messages=()),
        RequestStep(session="s", turn=1, step=1, request=ModelRequest(messages=())),
        TurnStopping(session="s", turn=1, step=1, text=""),
        Reject("x"),
        Continue("x"),
    ]
    for view in views:
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            view.turn = 2


@pytest.mark.concurrent
def test_hooks_see_where_the_turn_stands(home):
    seen = []

    def note(view, *, token):
        seen.append(view)

    agent = home.agent(["one", "two"], pre_step=note, request=note, turn_stopping=note, session="s")
    agent.run("a")
    agent.run("b")
    assert [type(view).__name__ for view in seen] == ["PreStep", "RequestStep", "TurnStopping"] * 2
    assert [(view.session, view.turn, view.step) for view in seen] == [("s", 1, 1)] * 3 + [("s", 2, 1)] * 3
    assert [message.text for message in seen[3].messages] == ["b"]
    assert [message.text for message in seen[4].request.messages] == ["a", "one", "b"]
    assert seen[5].text == "two"


@pytest.mark.concurrent
def test_a_hook_that_answers_nonsense_ends_the_turn_as_an_error(home):
    agent = home.agent(["one", "two"], turn_stopping=lambda view, *, token: True if view.turn == 1 else None)
    result = agent.run("a")
    assert (result.reason, result.error.code) == ("error", "hook_failed")
    assert agent.run("b").reason == "completed"
