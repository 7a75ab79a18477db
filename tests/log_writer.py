"""A writer of small logs by hand, valid or not: one method for each type of event."""

from syncagent.log import Event, check, closers

TIME = 1_790_000_000_000


def words(id, text="hello", role="user", **more):
    """A message of one text block."""
    return {"id": id, "role": role, "content": [{"type": "text", "text": text}], **more}


def text(text):
    return {"type": "text", "text": text}


def reasoning(text):
    return {"type": "reasoning", "text": text}


def calls(*ids, name="bash", arguments='{"command":"ls"}'):
    return [{"type": "tool_call", "id": id, "name": name, "arguments": arguments} for id in ids]


class Log:
    """Writes one event per method, with the open numbers; keywords go into `data` as they are."""

    def __init__(self):
        self.dicts = []
        self.time = TIME
        self.number = self.step_number = 0
        self.attempt = 1

    @property
    def events(self):
        return [Event.from_dict(item) for item in self.dicts]

    def add(self, type, later=1, **data):
        self.time += later
        self.dicts.append({"seq": len(self.dicts) + 1, "time": self.time, "type": type, "data": data})
        return self

    def _in_step(self, type, later=1, **data):
        numbers = {"turn": self.number, "step": self.step_number}
        return self.add(type, later, **{**numbers, **data})

    # -- the inbox

    def put(self, id, said="hello", target="next_turn", wake=True, **more):
        return self.add("inbox/put", **{"target": target, "message": words(id, said), "wake": wake, **more})

    def steer(self, id, said="hello", **more):
        return self.put(id, said, "next_step", **more)

    def taken(self, *ids, outcome="claimed", **more):
        return self.add("inbox/taken", ids=list(ids), outcome=outcome, **more)

    def canceled(self, *ids):
        return self.taken(*ids, outcome="canceled")

    def replaced(self, *ids):
        return self.taken(*ids, outcome="replaced")

    def cancel(self, **more):
        record = {"cause": "user", "via": "api", "keep_inbox": False, "scope": "tree"}
        return self.add("cancel/requested", **{**record, **more})

    def settled(self, **more):
        record = {"turn": self.number, "cause": "user", "ms": 1.5, "boundaries": [], "ignorable": True}
        return self.add("cancel/settled", **{**record, **more})

    def unknown(self, type="weather/changed", **data):
        return self.add(type, **{"ignorable": True, **data})

    def child(self, type, session="child", **more):
        base = {"call_id": None, "session": session, "mode": "background"}
        return self.add("subagent/" + type, **{**base, **more})

    # -- turns and steps

    def turn(self, **more):
        self.number, self.step_number = more.get("turn", self.number + 1), 0
        return self.add("turn/start", **{"turn": self.number, **more})

    def end_turn(self, kind="completed", **more):
        return self.add("turn/end", **{"turn": self.number, "reason": {"kind": kind}, **more})

    def step(self, **more):
        self.step_number, self.attempt = more.get("step", self.step_number + 1), 1
        return self._in_step("step/start", **more)

    def end_step(self, **more):
        return self._in_step("step/end", **more)

    def user(self, id, said="hello", **more):
        return self._in_step("user/message", **{"message": words(id, said), **more})

    # -- asking

    def header(self, model="m-1", **more):
        base = {"model": model, "provider": "openai", "params": {}, "system": "Be brief.", "tools": []}
        return self._in_step("request/header", **{**base, **more})

    def chunk(self, said="hi", kind="text", attempt=None, **more):
        chunk = {"kind": kind, "text": said, **more}
        return self._in_step("assistant/chunk", attempt=attempt or self.attempt, chunk=chunk)

    def retry(self, **more):
        self.attempt = more.get("attempt", self.attempt + 1)
        data = {"attempt": self.attempt, "delay_ms": 500, "error": {"code": "overloaded", "message": "busy"}}
        return self._in_step("model/retry", **{**data, **more})

    def says(self, *blocks, **more):
        """An assistant/message of these blocks; a string is a text block."""
        content = [text(block) if isinstance(block, str) else block for block in blocks]
        id = f"a-{self.number}-{self.step_number}-{self.attempt}"
        message = {"id": id, "role": "assistant", "content": content}
        usage = {"input_tokens": 10, "output_tokens": 5}
        data = {"attempt": self.attempt, "message": message, "usage": usage}
        return self._in_step("assistant/message", **{**data, **more})

    # -- acting

    def asked(self, id, **more):
        return self._in_step("approval/asked", **{"call_id": id, **more})

    def decided(self, id, decision="allowed", **more):
        return self._in_step("approval/decided", **{"call_id": id, "decision": decision, **more})

    def call(self, id, **more):
        data = {"call_id": id, "name": "bash", "arguments": '{"command":"ls"}', "effect": "write"}
        return self._in_step("tool/call", **{**data, **more})

    def output(self, id, said="line\n", **more):
        return self._in_step("tool/chunk", **{"call_id": id, "text": said, **more})

    def result(self, id, code=None, said="ok", **more):
        data = {"call_id": id, "content": [text(said)], "is_error": code is not None}
        if code is not None:
            data["error"] = {"code": code, "message": code.lower()}
        return self._in_step("tool/result", **{**data, **more})

    def gap(self, rows=3, **more):
        return self._in_step("log/gap", **{"rows": rows, "synthetic": True, **more})

    # -- whole parts

    def repair(self):
        """Write what repair writes."""
        for event in closers(check(self.events)):
            self.dicts.append(event.to_dict())
        return self

    def asking(self, id="u-1"):
        """A turn whose first step is about to ask."""
        return self.put(id).turn().taken(id).step().user(id)

    def acting(self, *ids, id="u-1"):
        """A turn whose first step has asked for these calls."""
        return self.asking(id).says("Let me look.", *calls(*ids))

    def whole(self, id="u-1", answer="hi"):
        """A whole turn."""
        return self.asking(id).chunk(answer).says(answer).end_step().end_turn()
