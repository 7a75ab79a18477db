"""The cases in `data`: cold logs with the closers they must get, and logs with what follows from them."""

import json
import pathlib

import pytest
from commands import run_process
from store_child import ignore, put_all

from syncagent.boundary.store.sqlite import SQLiteStore
from syncagent.log import Event, check, closers, consumed_work, dropped
from syncagent.surface.cli import main

DATA = pathlib.Path(__file__).parent / "data"


def cases(name):
    return [pytest.param(case, id=case["name"]) for case in json.loads((DATA / name).read_text("utf-8"))]


def joined(message, kind):
    return "".join(block["text"] for block in message["content"] if block["type"] == kind)


def seen(closer, key, wanted):
    """What a closer says under one of the keys that a case compares."""
    data = closer["data"]
    if key == "reason":
        return data["reason"]["kind"]
    if key == "code":
        return data["error"]["code"]
    if key in ("text", "reasoning"):
        return joined(data["message"], key)
    if key == "calls":
        return [block for block in data["message"]["content"] if block["type"] == "tool_call"]
    if key == "ids":
        return [data["message"]["id"]]
    if key == "quotes":
        return wanted if wanted in joined({"content": data["content"]}, "text") else None
    return closer["type"] if key == "type" else data.get(key)


@pytest.mark.parametrize("case", cases("repair.json"))
def test_a_cold_log_gets_these_closers_and_no_others(case):
    log = [Event.from_dict(item) for item in case["log"]]
    added = closers(check(log))
    got = [event.to_dict() for event in added]
    assert [item["type"] for item in got] == [wanted["type"] for wanted in case["expect"]]
    for number, (wanted, closer) in enumerate(zip(case["expect"], got), len(log) + 1):
        assert (closer["seq"], closer["time"]) == (number, log[-1].time)
        assert closer["data"]["synthetic"] is True
        assert {key: seen(closer, key, value) for key, value in wanted.items()} == wanted
    assert closers(check(log + added)) == []


@pytest.mark.parametrize("case", cases("repair.json"))
def test_only_an_unknown_outcome_forbids_to_retry_blindly(case):
    for event in closers(check(Event.from_dict(item) for item in case["log"])):
        if event.type == "tool/result":
            told = "Do not retry blindly" in joined(event.data, "text")
            assert told == (event.body.code == "TOOL_OUTCOME_UNKNOWN")


@pytest.mark.parametrize("case", cases("consumed_work.json"))
def test_what_a_log_has_consumed_and_dropped(case):
    log = [Event.from_dict(item) for item in case["log"]]
    check(log)
    work = consumed_work(log)
    assert {
        "end_turn": work.end.data["turn"] if work.end is not None else None,
        "dropped_unrun": work.dropped_unrun,
        "dropped_ids": [message.id for message in dropped(log)],
    } == case["expect"]


@pytest.mark.parametrize("case", cases("repair.json") + cases("consumed_work.json"))
def test_the_command_prints_the_closers_of_a_file_and_a_store_adds_them(case, tmp_path, capsys):
    log = [Event.from_dict(item) for item in case["log"]]
    added = closers(check(log))
    file = write(tmp_path, case)
    assert main(["repair", str(file)]) == 0
    shown = capsys.readouterr()
    assert ([json.loads(line) for line in shown.out.splitlines()], shown.err) == (
        [event.to_dict() for event in added], ""
    )  # fmt: skip
    with SQLiteStore(tmp_path / "runs.db") as store:
        opened = store.create("s", on_failure=ignore)
        put_all(store, opened, log)
        store.release(opened.lease)
        for expected in (added, []):
            again = store.open("s", on_failure=ignore)
            assert again.closers == expected
            store.release(again.lease)
        assert list(store.read("s")) == log + added


def write(folder, case):
    file = folder / "log.jsonl"
    file.write_text("".join(json.dumps(item, ensure_ascii=False) + "\n" for item in case["log"]), "utf-8")
    return file


def test_the_command_as_a_process_prints_the_same(tmp_path):
    case = max(json.loads((DATA / "repair.json").read_text("utf-8")), key=lambda case: len(case["expect"]))
    done = run_process("repair", str(write(tmp_path, case)), db=tmp_path / "none.db")
    added = closers(check(Event.from_dict(item) for item in case["log"]))
    assert (done.code, done.err, done.objects) == (0, "", [event.to_dict() for event in added])
    assert not (tmp_path / "none.db").exists()
