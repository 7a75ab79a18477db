"""Small logs by rule: those that break it with their last event, and those that only just keep them all."""

from logs import Log, calls, reasoning, words

SYN = {"synthetic": True}


def last(log, **changes):
    """The log with its last event's place or data changed."""
    log.dicts[-1].update(changes)
    return log


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


def unparked(log=None):
    """A turn that claimed two messages; neither entered."""
    return (log or Log()).put("u-1").put("u-2").turn().taken("u-1", "u-2")


def cut_text():
    return Log().asking().chunk("Hel").chunk("lo")


def running(*ids):
    return Log().acting(*ids).call(ids[0])


UNKNOWN, NOT_STARTED = "TOOL_OUTCOME_UNKNOWN", "TOOL_NOT_STARTED"

BROKEN = {
    "L1": {
        "the first seq is 2": last(Log().turn(), seq=2),
        "the first seq is 0": last(Log().turn(), seq=0),
        "a seq comes twice": last(Log().turn().step(), seq=1),
        "a seq is left out": last(Log().turn().step(), seq=3),
        "time goes back": Log().turn().add("step/start", later=-1, turn=1, step=1),
        "time is before the epoch": last(Log().turn(), time=-1),
        "a number that is no number": Log().asking().chunk("x", index=float("nan")),
        "an endless number": Log().asking().header(params={"temperature": float("inf")}),
        "half a surrogate pair": Log().asking().chunk("\ud83d"),
        "half a surrogate pair in a key": Log().unknown(**{"\ude00": 1}),
        "half a surrogate pair in the type": Log().unknown("\ud83d"),
        "a key that is no string": last(Log().unknown(), data={"ignorable": True, 1: 2}),
        "a tuple": Log().unknown(x=(1, 2)),
        "a value that JSON doesn't have": Log().unknown(x={1, 2}),
        "deeper than any reader is sure to read": Log().unknown(x=nested(300)),
        "deeper than any interpreter can": Log().unknown(x=nested(100_000)),
        "a key is missing": last(Log().turn(), data={}),
        "a number is a string": Log().turn(turn="1"),
        "a number is a truth": Log().turn().step(step=True),
        "a number is a fraction": Log().turn().step(step=1.0),
        "synthetic is no truth": Log().turn().step(synthetic="yes"),
        "an ending that nobody knows": Log().turn().end_turn("finished"),
        "an outcome that nobody knows": Log().put("u-1").taken("u-1", outcome="lost"),
        "a message without an id": Log().add("inbox/put", target="next_turn", wake=True, message={}),
        "a retry that says nothing of its error": Log().asking().retry(error=None),
    },
    "L2": {
        "a turn in a turn": Log().turn().turn(),
        "a step outside a turn": Log().step(),
        "a step in a step": Log().turn().step().step(),
        "a turn ends outside a turn": Log().end_turn(),
        "a turn ends twice": Log().whole().end_turn(),
        "a turn ends in a step that asks": Log().asking().end_turn(),
        "a turn ends in a step that acts": Log().asking().says("hi").end_turn(),
        "a step ends between steps": Log().turn().end_step(),
        "a message enters between steps": Log().put("u-1").turn().taken("u-1").user("u-1"),
        "a message enters after the answer": Log().put("u-2").asking().says("hi").user("u-2"),
        "a message enters after the first chunk":
            Log().put("u-1").put("u-2").turn().taken("u-1", "u-2").step().user("u-1").chunk().user("u-2"),
        "a message enters after a retry": Log().put("u-1").turn().taken("u-1").step().retry().user("u-1"),
        "a claim outside a turn": Log().put("u-1").taken("u-1"),
        "a claim after the step's first message": Log().put("u-2").asking().taken("u-2"),
        "a claim after the first chunk": Log().put("u-1").turn().step().chunk().taken("u-1"),
        "a claim after a retry": Log().put("u-1").turn().step().retry().taken("u-1"),
        "a claim while calls run": Log().put("u-2").acting("c1").taken("u-2"),
        "a header between steps": Log().turn().header(),
        "a header after the attempt's first chunk": Log().asking().chunk().header(),
        "a header after a chunk of nothing": Log().asking().chunk("").header(),
        "a header after the answer": Log().asking().says("hi").header(),
        "a chunk between steps": Log().turn().add("assistant/chunk", turn=1, step=0, attempt=1,
                                                  chunk={"kind": "text", "text": "x"}),
        "a chunk after the answer": Log().asking().says("hi").chunk(),
        "a retry after the answer": Log().asking().says("hi").retry(),
        "a second answer in a step": Log().asking().says("hi").says("again"),
        "an approval before the answer": Log().asking().asked("c1"),
        "a decision before the answer": Log().asking().decided("c1"),
        "a call before the answer": Log().asking().call("c1"),
        "a result before the answer": Log().asking().result("c1"),
        "output before its call": Log().acting("c1").output("c1"),
        "output after its result": Log().acting("c1").call("c1").result("c1").output("c1"),
        "output of a call that nobody asked for": Log().acting("c1").call("c1").output("c2"),
        "a gap outside a turn": Log().gap(turn=0, step=0),
        "a type that this build doesn't know": Log().add("weather/changed", sky="grey"),
        "a type that is only nearly ignorable": Log().add("weather/changed", ignorable=1),
    },
    "L3": {
        "the first turn is 0": Log().turn(turn=0),
        "the first turn is 2": Log().turn(turn=2),
        "a turn comes twice": Log().whole().turn(turn=1),
        "a turn is left out": Log().whole().turn(turn=3),
        "turns go back": Log().whole("a").whole("b").turn(turn=1),
        "a turn's number is too large after an interrupted one": Log().turn().repair().turn(turn=3),
        "turns begin again after one that did nothing": Log().turn().end_turn().turn(turn=1),
    },
    "L4": {
        "the first step is 0": Log().turn().step(step=0),
        "the first step is 2": Log().turn().step(step=2),
        "a step comes twice": Log().turn().step().end_step().step(step=1),
        "a step is left out": Log().turn().step().end_step().step(step=3),
        "steps go on from the turn before": Log().whole().turn().step(step=2),
        "a step of another turn": Log().turn().step(turn=2),
        "a step ends with another number": Log().turn().step().end_step(step=2),
        "a turn ends with another number": Log().turn().end_turn(turn=2),
        "a message of another step":
            Log().asking().end_step().put("u-2").taken("u-2").step().user("u-2", step=1),
        "a chunk of the first attempt after a retry": Log().asking().retry().chunk(attempt=1),
        "a chunk of an attempt that did not begin": Log().asking().chunk(attempt=2),
        "an answer of another attempt": Log().asking().retry().says("hi", attempt=1),
        "a retry that stays": Log().asking().retry(attempt=1),
        "a retry that skips one": Log().asking().retry(attempt=3),
        "attempts go on from the step before":
            Log().asking().retry().says("x").end_step().step().chunk(attempt=2),
        "a header of another turn": Log().asking().header(turn=2),
        "a result of another step": running("c1").result("c1", step=2),
        "an approval of another turn": Log().acting("c1").asked("c1", turn=7),
        "a gap of another step": Log().asking().gap(step=2),
    },
    "L5": {
        "a call that the message did not ask for": Log().acting("c1").call("c2"),
        "a call starts twice": running("c1").call("c1"),
        "a call starts after its result": running("c1").result("c1").call("c1"),
        "a call starts after it was refused": Log().acting("c1").result("c1", "DENIED").call("c1"),
        "a call of the step before":
            running("c1").result("c1").end_step().step().says("x", *calls("c2")).call("c1"),
        "two calls with one id": Log().asking().says("x", *calls("c1", "c1")),
        "a call without an id": Log().asking().says("x", *calls("")),
        "approval is asked twice": Log().acting("c1").asked("c1").asked("c1"),
        "approval is asked again after the decision":
            Log().acting("c1").asked("c1").decided("c1").asked("c1"),
        "approval is asked after the start": running("c1").asked("c1"),
        "approval for a call that nobody asked for": Log().acting("c1").asked("c2"),
        "a decision that nobody waited for": Log().acting("c1").decided("c1"),
        "two decisions": Log().acting("c1").asked("c1").decided("c1").decided("c1", "rejected"),
        "a start before the decision": Log().acting("c1").asked("c1").call("c1"),
        "a start after a rejection": Log().acting("c1").asked("c1").decided("c1", "rejected").call("c1"),
        "a start after a cancelled question":
            Log().acting("c1").asked("c1").decided("c1", "cancelled").call("c1"),
        "a start after nobody could answer":
            Log().acting("c1").asked("c1").decided("c1", "unavailable").call("c1"),
        "another call's approval counts for nothing":
            Log().acting("c1", "c2").asked("c1").asked("c2").decided("c1").call("c2"),
    },
    "L6": {
        "a result that nobody asked for": Log().acting("c1").result("c2", "DENIED"),
        "two results": running("c1").result("c1").result("c1"),
        "two errors without a start": Log().acting("c1").result("c1", "DENIED").result("c1", "DENIED"),
        "a success without a start": Log().acting("c1").result("c1"),
        "a success after approval, without a start":
            Log().acting("c1").asked("c1").decided("c1").result("c1"),
        "aborted without a start": Log().acting("c1").result("c1", "ABORTED"),
        "an unknown outcome without a start": Log().acting("c1").result("c1", UNKNOWN, **SYN),
        "not started after the start": running("c1").result("c1", NOT_STARTED, **SYN),
        "not started after the start, by a living turn": running("c1").result("c1", NOT_STARTED),
        "not started after rows were lost": Log().acting("c1").gap().result("c1", NOT_STARTED, **SYN),
        "a result of the step before":
            running("c1").result("c1").end_step().step().says("x", *calls("c2")).result("c1", "DENIED"),
        "an answer without calls has no results": Log().asking().says("x").result("c1", "DENIED"),
    },
    "L7": {
        "a step ends over a running call": running("c1").end_step(),
        "a step ends over a call that did not start": Log().acting("c1").end_step(),
        "a step ends over the second of two": running("c1", "c2").result("c1").end_step(),
        "a step ends over the first of two": running("c2", "c1").result("c2").end_step(),
        "a step ends over a call that was asked for": Log().acting("c1").asked("c1").end_step(),
        "a step ends over an allowed call": Log().acting("c1").asked("c1").decided("c1").end_step(),
        "a repair leaves a call open": running("c1", "c2").result("c1", UNKNOWN, **SYN).end_step(**SYN),
        "rows were lost, and a call is left open": running("c1").gap().end_step(**SYN),
    },
    "L8": {
        "a living turn is interrupted": Log().turn().end_turn("interrupted"),
        "a living call has an unknown outcome": running("c1").result("c1", UNKNOWN),
        "a living call was not started": Log().acting("c1").result("c1", NOT_STARTED),
        "a repair completes a turn": Log().turn().end_turn(**SYN),
        "a repair aborts a turn": Log().turn().end_turn("aborted", **SYN),
        "a repair ends a turn with an error":
            Log().turn().add("turn/end", turn=1, reason={"kind": "error", "error": {"code": "x"}}, **SYN),
        "a repair parks outside a turn": Log().put("u-1", **SYN),
        "a repair parks after the turn": unparked().end_turn().put("u-1", wake=False, **SYN),
        "an ignorable event of a repair outside a turn": Log().unknown(**SYN),
        "a repair asks for a stop": Log().turn().cancel(**SYN),
        "a repair takes": Log().put("u-1").turn().taken("u-1", **SYN),
        "a repair begins a turn": Log().turn(**SYN),
        "a repair begins a step": Log().turn().step(**SYN),
        "a repair enters a message": Log().put("u-1").turn().taken("u-1").step().user("u-1", **SYN),
        "a repair writes a header": Log().asking().header(**SYN),
        "a repair retries": Log().asking().retry(**SYN),
        "a repair asks for approval": Log().acting("c1").asked("c1", **SYN),
        "a repair decides": Log().acting("c1").asked("c1").decided("c1", **SYN),
        "a repair starts a call": Log().acting("c1").call("c1", **SYN),
        "a repair writes output": running("c1").output("c1", **SYN),
        "a repair starts a child": Log().turn().child("started", **SYN),
        "a repair ends a child": Log().turn().child("ended", reason="failed", **SYN),
        "a step ends while a claim waits": unparked().step().end_step(**SYN),
        "a turn ends while a claim waits": unparked().end_turn("interrupted", **SYN),
        "a turn ends while the second claim waits":
            unparked().put("u-1", wake=False, **SYN).end_turn("interrupted", **SYN),
        "an answer is recovered while a claim waits":
            unparked().step().chunk().says("hi", interrupted=True, **SYN),
        "a placeholder while a claim waits":
            unparked().step().user("u-1").says("x", *calls("c1")).result("c1", NOT_STARTED, **SYN),
        "the second claim is parked first": unparked().put("u-2", wake=False, **SYN),
        "a message that is not claimed is parked": Log().turn().put("u-9", wake=False, **SYN),
        "another than the claimed one is parked": unparked().put("u-9", wake=False, **SYN),
        "what has entered is parked": Log().asking().put("u-1", wake=False, **SYN),
        "it is parked to wake": unparked().put("u-1", **SYN),
        "it is parked in the other list": unparked().steer("u-1", wake=False, **SYN),
        "it is parked with another text": unparked().put("u-1", "other", wake=False, **SYN),
        "it is parked twice": unparked().put("u-1", wake=False, **SYN).put("u-1", wake=False, **SYN),
        "a step ends over visible text": cut_text().end_step(**SYN),
        "a step ends over visible reasoning": Log().asking().chunk("hm", "reasoning").end_step(**SYN),
        "a step ends over visible text after a retry": cut_text().retry().chunk("x").end_step(**SYN),
        "a recovered answer is not marked as cut": cut_text().says("Hello", **SYN),
        "an answer is recovered of nothing": Log().asking().says("Hello", interrupted=True, **SYN),
        "an answer is recovered of white space":
            Log().asking().chunk(" \n").says("Hello", interrupted=True, **SYN),
        "an answer is recovered of a failed attempt":
            cut_text().retry().says("Hello", interrupted=True, **SYN),
        "placeholders in another order":
            Log().acting("c1", "c2").result("c2", NOT_STARTED, **SYN),
        "placeholders in the order of the starts":
            Log().acting("c1", "c2").call("c2").result("c2", UNKNOWN, **SYN),
        "a placeholder that is measured": running("c1").result("c1", **SYN),
        "a placeholder with another code": running("c1").result("c1", "ABORTED", **SYN),
        "a placeholder that is no error": running("c1").result("c1", UNKNOWN, is_error=False, **SYN),
        "a refusal by repair": Log().acting("c1").result("c1", "DENIED", **SYN),
        "a message is put after a park": unparked().put("u-1", wake=False, **SYN).put("u-3"),
        "the inbox is emptied after a park": unparked().put("u-1", wake=False, **SYN).canceled("u-1"),
        "a stop is asked for after a park": unparked().put("u-1", wake=False, **SYN).cancel(),
        "a child ends after a park": unparked().put("u-1", wake=False, **SYN).child("ended", reason="failed"),
        "something ignorable after a park": unparked().put("u-1", wake=False, **SYN).unknown(),
        "a living turn ends after a park":
            Log().put("u-1").turn().taken("u-1").put("u-1", wake=False, **SYN).end_turn("aborted"),
        "a living step goes on after a park":
            Log().put("u-1").turn().taken("u-1").put("u-1", wake=False, **SYN).step(),
        "a living step ends after a recovered answer":
            cut_text().says("Hello", interrupted=True, **SYN).end_step(),
        "a real result after a placeholder":
            Log().acting("c1", "c2").call("c1").call("c2").result("c1", UNKNOWN, **SYN).result("c2"),
        "a living step ends after the placeholders": running("c1").result("c1", UNKNOWN, **SYN).end_step(),
        "a living turn ends after a step that repair ended": Log().turn().step().end_step(**SYN).end_turn(),
        "a step begins after a step that repair ended": Log().turn().step().end_step(**SYN).step(),
        "a claim after a step that repair ended": Log().put("u-1").turn().step().end_step(**SYN).taken("u-1"),
        "a gap that is not salvaged": Log().turn().gap(synthetic=False),
        "a gap that says nothing of salvage":
            last(Log().turn().gap(), data={"turn": 1, "step": 0, "rows": 1}),
        "a gap after a park": unparked().put("u-1", wake=False, **SYN).gap(),
        "a gap after a recovered answer": cut_text().says("Hello", interrupted=True, **SYN).gap(),
        "a gap after a placeholder": Log().acting("c1", "c2").result("c1", NOT_STARTED, **SYN).gap(),
        "a gap after a step that repair ended": Log().turn().step().end_step(**SYN).gap(),
        "a living event after a gap": Log().asking().gap().chunk(),
        "a message is put after a gap": Log().asking().gap().put("u-2"),
        "a real result after a gap": running("c1").gap().result("c1"),
        "a living step ends after a gap": Log().asking().gap().end_step(),
        "a living turn ends after a gap": Log().turn().gap(step=0).end_turn(),
    },
    "L9": {
        "nothing": Log().asking().says(),
        "no text": Log().asking().says(""),
        "white space": Log().asking().says(" \n\t\u00a0"),
        "reasoning of white space": Log().asking().says(reasoning("  "), " "),
        "a block of another kind alone": Log().asking().says({"type": "image", "url": "x"}),
        "a cut one of white space": Log().asking().chunk(" ").says(" ", interrupted=True),
        "a cut one with a call": cut_text().says("Hello", *calls("c1"), interrupted=True),
        "a cut one with only a call": cut_text().says(*calls("c1"), interrupted=True),
        "a recovered one with a call": cut_text().says("Hello", *calls("c1"), interrupted=True, **SYN),
        "a recovered one of nothing": cut_text().says(interrupted=True, **SYN),
        "a user's words": Log().asking().says(message=words("a", "hi", "user")),
        "a tool's words": Log().asking().says(message=words("a", "hi", "tool")),
    },
    "L10": {
        "a pending message is put again": Log().put("u-1").put("u-1"),
        "it is put into the other list": Log().put("u-1").steer("u-1"),
        "it is put in a turn": Log().put("u-1").turn().put("u-1"),
        "it was replaced, put again, and is put again":
            Log().put("u-1").replaced("u-1").put("u-1").put("u-1"),
        "a claimed message is put": unparked().put("u-1"),
        "a claimed message is put into the other list": unparked().steer("u-2"),
        "a message that has entered is put": Log().asking().put("u-1"),
        "a message that has entered is put in the next step": Log().asking().says("x").end_step().put("u-1"),
        "what was never put is taken": Log().turn().taken("u-1"),
        "what was never put is canceled": Log().canceled("u-1"),
        "it is taken twice": unparked().taken("u-1"),
        "it is canceled twice": Log().put("u-1").canceled("u-1").canceled("u-1"),
        "it is taken twice at once": Log().put("u-1").turn().taken("u-1", "u-1"),
        "one of two is not pending": Log().put("u-1").canceled("u-1", "u-2"),
        "what was claimed is canceled": unparked().canceled("u-1"),
        "what was claimed is replaced": unparked().replaced("u-2"),
        "it is taken after a park": unparked().put("u-1", wake=False, **SYN).put("u-2", wake=False, **SYN)
            .end_turn("interrupted", **SYN).canceled("u-1", "u-1"),
        "what was not claimed enters": Log().put("u-1").turn().step().user("u-1"),
        "what was canceled enters": Log().put("u-1").turn().canceled("u-1").step().user("u-1"),
        "what was never put enters": Log().turn().step().user("u-1"),
        "it enters twice": Log().asking().user("u-1"),
        "it enters twice, in two steps": Log().asking().says("x").end_step().step().user("u-1"),
        "it was claimed by an earlier turn": unparked().end_turn("blocked").turn().step().user("u-1"),
        "the model's words are put":
            Log().add("inbox/put", target="next_turn", wake=True, message=words("u", "x", "assistant")),
        "the model's words enter": Log().put("u-1").turn().taken("u-1").step()
            .user("u-1", message=words("u-1", "x", "assistant")),
    },
}

KEPT = {
    "nothing at all": Log(),
    "a turn that does nothing": Log().turn().end_turn(),
    "a step that does nothing": Log().turn().step().end_step().end_turn("error"),
    "time stands still": last(Log().turn().add("step/start", later=0, turn=1, step=1)),
    "the deepest data": Log().unknown(x=nested(195)),
    "a claim in a step, after the header": Log().put("u-1").turn().step().header().taken("u-1").user("u-1"),
    "a claim between steps": Log().asking().says("x").end_step().steer("s-1").taken("s-1").step().user("s-1"),
    "a claim of nothing": Log().turn().taken(),
    "what is claimed first enters later":
        unparked().step().user("u-2").says("x").end_step().step().user("u-1").end_step().end_turn(),
    "what is claimed never enters": unparked().end_turn("blocked"),
    "a header in each attempt, with traffic between":
        Log().asking().header().put("x").header().chunk().retry().header().chunk(),
    "a chunk of nothing, then the answer": Log().asking().chunk("").says("x"),
    "an answer without chunks": Log().asking().says("x").end_step().end_turn(),
    "only calls": Log().asking().says(*calls("c1")),
    "only reasoning": Log().asking().says(reasoning("hm")),
    "white space beside a call": Log().asking().says(" ", *calls("c1")),
    "a block of another kind beside text": Log().asking().says("x", {"type": "image", "url": "y"}),
    "a cut answer of a living turn":
        cut_text().says("Hello", interrupted=True).end_step().end_turn("aborted"),
    "a living failed attempt commits no message": cut_text().end_step().end_turn("error"),
    "calls with one id, in two steps":
        running("c1").result("c1").end_step().step().says("x", *calls("c1")).call("c1").result("c1"),
    "results in any order":
        Log().acting("c1", "c2", "c3").call("c3").call("c1").result("c3").result("c2", "DENIED").result("c1"),
    "an allowed call": Log().acting("c1").asked("c1").decided("c1").call("c1").output("c1").result("c1"),
    "an allowed call that a stop kept from starting":
        Log().acting("c1").asked("c1").decided("c1").result("c1", "ABORTED_BEFORE_DISPATCH").end_step(),
    "a refused call":
        Log().acting("c1").asked("c1").decided("c1", "rejected").result("c1", "DENIED").end_step(),
    "a question that nobody answered": Log().acting("c1").asked("c1").result("c1", "ABORTED_BEFORE_DISPATCH"),
    "a call whose body never began": running("c1").result("c1", "CHECKPOINT_FAILED").end_step(),
    "an aborted call": running("c1").result("c1", "ABORTED").end_step().end_turn("aborted"),
    "an error without an object": running("c1").result("c1", is_error=True).end_step(),
    "a canceled message is put back": Log().put("u-1").canceled("u-1").put("u-1"),
    "a canceled message is put back in the same turn": Log().put("u-1").turn().canceled("u-1").put("u-1"),
    "a dropped claim is put back after its turn": unparked().end_turn("blocked").put("u-2").put("u-1"),
    "a message enters again in a later turn": Log().whole().put("u-1").turn().taken("u-1").step().user("u-1"),
    "a replaced message's successor": Log().put("u-1").replaced("u-1").put("u-1b"),
    "children and stops anywhere": Log().cancel().turn().child("started").step().cancel().chunk()
        .child("ended", reason="aborted").says("x", *calls("c1")).child("started", call_id="c1").cancel(),
    "synthetic false says nothing": Log().turn(synthetic=False).end_turn(synthetic=False),
    "something ignorable anywhere": Log().unknown().turn().unknown().step().unknown().says("x").unknown(),
    "something ignorable of a repair":
        Log().asking().unknown(**SYN).end_step(**SYN).end_turn("interrupted", **SYN),
    "parks first, in the order of the claim": unparked().step().put("u-1", wake=False, **SYN)
        .put("u-2", wake=False, **SYN).end_step(**SYN).end_turn("interrupted", **SYN).turn(),
    "only what did not enter is parked": unparked().step().user("u-2").put("u-1", wake=False, **SYN)
        .end_step(**SYN).end_turn("interrupted", **SYN),
    "an answer, then the ends":
        cut_text().says("Hello", interrupted=True, **SYN).end_step(**SYN).end_turn("interrupted", **SYN),
    "white space alone is not recovered":
        Log().asking().chunk(" ").end_step(**SYN).end_turn("interrupted", **SYN),
    "text of a failed attempt is not recovered":
        cut_text().retry().chunk("x", "tool_call").end_step(**SYN).end_turn("interrupted", **SYN),
    "placeholders in the model's order, around a real result": Log().acting("c1", "c2", "c3").call("c3")
        .call("c2").result("c2").result("c1", NOT_STARTED, **SYN).result("c3", UNKNOWN, **SYN),
    "a gap before the first closer": Log().acting("c1").gap().result("c1", UNKNOWN, **SYN).end_step(**SYN),
    "a gap between steps, whatever it says of the step":
        Log().turn().gap(step=None).end_turn("interrupted", **SYN),
    "two gaps": Log().asking().gap().gap().end_step(**SYN),
    "a gap, a park, the ends": unparked().step().gap().put("u-1", wake=False, **SYN)
        .put("u-2", wake=False, **SYN).end_step(**SYN).end_turn("interrupted", **SYN),
    "a gap ends with its step's turn": Log().acting("c1").gap().repair().turn().step().says(*calls("c1"))
        .result("c1", NOT_STARTED, **SYN),
    "life goes on after a repair": running("c1").repair().whole("u-2"),
}
