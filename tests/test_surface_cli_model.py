"""Which model a name means, and what is missing when it means none."""

import pytest

from syncagent.surface.cli.model import make_model
from syncagent.surface.cli.options import WrongUse

HERE = "http://127.0.0.1:9/v1"


@pytest.fixture(autouse=True)
def no_key(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


@pytest.mark.parametrize(
    "given, name",
    [
        ("openai:gpt-x", "gpt-x"),
        ("gpt-x", "gpt-x"),
        ("qwen:7b", "qwen:7b"),
        ("openai:a:b", "a:b"),
        ("locals", "locals"),
    ],
)
def test_a_name_means_a_model_behind_chat_completions(given, name):
    model = make_model(given, base_url=HERE)
    assert (model.name, model.provider) == (name, "openai")
    assert HERE in repr(model)
    model.close()


@pytest.mark.parametrize("given", ["anthropic:x", "responses:x", "local", "local:x"])
def test_a_dialect_that_is_not_there_yet_is_named(given):
    with pytest.raises(WrongUse, match="can't be used yet"):
        make_model(given, base_url=HERE)


@pytest.mark.parametrize("given", [None, ""])
def test_no_name_is_wrong_use(given):
    with pytest.raises(WrongUse, match="give -m NAME, or set SYNCAGENT_MODEL"):
        make_model(given, base_url=HERE)


def test_a_prefix_without_a_name_is_wrong_use():
    with pytest.raises(WrongUse, match="NAME is missing"):
        make_model("openai:", base_url=HERE)


@pytest.mark.parametrize("base_url", [None, ""])
def test_the_providers_own_server_needs_a_key(monkeypatch, base_url):
    with pytest.raises(WrongUse, match="set OPENAI_API_KEY"):
        make_model("x", base_url=base_url)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    model = make_model("x", base_url=base_url)
    assert "api.openai.com" in repr(model)
    model.close()


def test_an_address_that_is_none_is_wrong_use():
    with pytest.raises(WrongUse, match="--base-url .* must be an http or https address"):
        make_model("x", base_url="ftp://host")


def test_a_key_that_can_not_be_sent_is_wrong_use_and_not_shown(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-se cret")
    with pytest.raises(WrongUse, match="OPENAI_API_KEY") as caught:
        make_model("x", base_url=HERE)
    assert "cret" not in str(caught.value)
