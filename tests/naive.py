"""The rules of repair and of the folds read naively: each part is found by searching the whole log.

Slow, and written without the code that it is compared with. All take events as dicts.
"""

import itertools


def brief(items):
    """Closers in short: the type, and what tells it from others of its type."""
    short = []
    for item in items:
        data, type = item["data"], item["type"]
        if type == "inbox/put":
            short.append(("put", data["target"], data["message"]["id"]))
        elif type == "assistant/message":
            content = data["message"]["content"]
            short.append(("says", *((block["type"], block["text"]) for block in content)))
        elif type == "tool/result":
            short.append((data["call_id"], data["error"]["code"]))
        else:
            short.append((type, data.get("step") or data["reason"]["kind"]))
    return short


def naive_repair(dicts):
    """What repair must add, found by searching the whole log for each part, in the form of `brief`."""
    opened = [n for n, item in enumerate(dicts) if item["type"] == "turn/start"]
    if not opened or any(item["type"] == "turn/end" for item in dicts[opened[-1]:]):
        return []
    turn = dicts[opened[-1]:]
    wanted = []
    for n, item in enumerate(turn):
        if item["type"] == "inbox/taken" and item["data"]["outcome"] == "claimed":
            for id in item["data"]["ids"]:
                later = [e for e in turn[n:] if e["data"].get("message", {}).get("id") == id]
                if not later:
                    put = [e for e in dicts if e["type"] == "inbox/put" and e["data"]["message"]["id"] == id]
                    wanted.append(("put", put[-1]["data"]["target"], id))
    starts = [n for n, item in enumerate(turn) if item["type"] == "step/start"]
    if starts and not any(item["type"] == "step/end" for item in turn[starts[-1]:]):
        step = turn[starts[-1]:]
        wanted += naive_answer(step) + naive_results(step)
        wanted.append(("step/end", step[0]["data"]["step"]))
    return wanted + [("turn/end", "interrupted")]


def naive_answer(step):
    if any(item["type"] == "assistant/message" for item in step):
        return []
    retries = [n for n, item in enumerate(step) if item["type"] == "model/retry"]
    attempt = step[retries[-1] if retries else 0:]
    chunks = [item["data"]["chunk"] for item in attempt if item["type"] == "assistant/chunk"]
    blocks = []
    shown = [chunk for chunk in chunks if chunk["kind"] != "tool_call" and chunk["text"]]
    for kind, run in itertools.groupby(shown, lambda chunk: chunk["kind"]):
        said = "".join(chunk["text"] for chunk in run)
        if said.strip() and blocks and blocks[-1][0] == kind:
            blocks[-1] = (kind, blocks[-1][1] + said)
        elif said.strip():
            blocks.append((kind, said))
    return [("says", *blocks)] if blocks else []


def naive_results(step):
    lost = any(item["type"] == "log/gap" for item in step)
    results = []
    for item in step:
        if item["type"] == "assistant/message":
            for block in item["data"]["message"]["content"]:
                if block["type"] == "tool_call":
                    seen = {e["type"] for e in step if e["data"].get("call_id") == block["id"]}
                    if "tool/result" not in seen:
                        ran = lost or "tool/call" in seen
                        code = "TOOL_OUTCOME_UNKNOWN" if ran else "TOOL_NOT_STARTED"
                        results.append((block["id"], code))
    return results


def turns(dicts):
    """(first, last) of each turn by place; last is None while it is open."""
    starts = [n for n, item in enumerate(dicts) if item["type"] == "turn/start"]
    stops = [n for n, item in enumerate(dicts) if item["type"] == "turn/end"]
    return list(itertools.zip_longest(starts, stops))


def takes(dicts, outcome):
    """The places of the inbox/taken events with that outcome that took something."""
    return [
        n for n, item in enumerate(dicts)
        if item["type"] == "inbox/taken" and item["data"]["outcome"] == outcome and item["data"]["ids"]
    ]


def naive_consumed_work(dicts):
    """(number of the accounting turn or None, whether accepted work was dropped unrun since)."""
    found, at = None, -1
    for first, last in turns(dicts):
        if last is None:
            continue
        turn = dicts[first:last + 1]
        stepped = any(item["type"] == "step/start" for item in turn)
        claimed = bool(takes(turn, "claimed"))
        if stepped or (claimed and turn[-1]["data"]["reason"]["kind"] != "completed"):
            found, at = turn[0]["data"]["turn"], last
    return found, any(n > at for n in takes(dicts, "canceled"))


def naive_dropped(dicts):
    """The ids of the messages whose last put was taken and that never entered."""
    open_at = next((first for first, last in turns(dicts) if last is None), len(dicts))
    found = []
    for n, item in enumerate(dicts):
        if item["type"] == "inbox/taken" and item["data"]["outcome"] != "replaced":
            for id in item["data"]["ids"]:
                put_later = any(is_of(later, "inbox/put", id) for later in dicts[n:])
                entered = any(is_of(other, "user/message", id) for other in dicts)
                claimed_now = n > open_at and item["data"]["outcome"] == "claimed"
                if not (put_later or entered or claimed_now):
                    found.append(id)
    return found


def naive_pending(dicts):
    """The ids that wait, by target: puts stand at the tail, the row of a repair's puts at the head."""
    waiting = {"next_step": [], "next_turn": []}
    heads = {}
    for item in dicts:
        data = item["data"]
        if item["type"] == "turn/start":
            heads = {"next_step": 0, "next_turn": 0}
        elif item["type"] == "inbox/taken":
            for queue in waiting.values():
                queue[:] = [id for id in queue if id not in data["ids"]]
        elif item["type"] == "inbox/put" and data.get("synthetic"):
            waiting[data["target"]].insert(heads[data["target"]], data["message"]["id"])
            heads[data["target"]] += 1
        elif item["type"] == "inbox/put":
            waiting[data["target"]].append(data["message"]["id"])
    return waiting


def is_of(item, type, id):
    return item["type"] == type and item["data"]["message"]["id"] == id
