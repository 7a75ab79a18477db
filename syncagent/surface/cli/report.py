"""How a turn ended and what an open repaired, as words for a person and as an object for a program."""

from typing import Any, Dict, Optional

from syncagent.runtime.result import RepairReport, TurnResult

__all__ = ["count", "describe_ending", "describe_repair", "result_object"]


def describe_ending(result: TurnResult) -> str:
    """How the turn ended, in one line that is not printable yet."""
    turn = f"turn {result.turn}" if result.turn is not None else "the message"
    if result.reason == "aborted":
        how = "was stopped" if result.turn is not None else "was dropped before a turn took it"
        return f"{turn} {how} (cause: {result.cause})"
    if result.reason == "max_tokens":
        return f"{turn} reached the output limit (max_tokens): its answer is cut"
    why = f": {result.error}" if result.error is not None else ""
    how = {"blocked": "was blocked", "error": "failed", "completed": "has completed"}[result.reason]
    return f"{turn} {how}{why}"


def describe_repair(session: str, report: RepairReport) -> str:
    """What opening the session repaired, in one line that is not printable yet."""
    parts = []
    if report.unknown:
        parts.append(f"{count(len(report.unknown), 'call')} of unknown outcome")
    if report.not_started:
        parts.append(f"{count(len(report.not_started), 'call')} not started")
    if report.text:
        parts.append(f"{count(len(report.text), 'character')} of an answer recovered")
    if report.parked:
        parts.append(f"{count(len(report.parked), 'message')} back in the inbox")
    what = f": {', '.join(parts)}" if parts else ""
    return f"session {session}: turn {report.turn} had died with its process and was closed{what}"


def count(number: int, word: str) -> str:
    """A number of things: 1 call, 2 calls."""
    return f"{number} {word}{'s' if number != 1 else ''}"


def result_object(session: str, result: TurnResult, opened: Optional[RepairReport]) -> Dict[str, Any]:
    """What `--json` prints of a turn."""
    repaired = None
    if opened is not None:
        repaired = {
            "turn": opened.turn,
            "unknown": opened.unknown,
            "not_started": opened.not_started,
            "text": opened.text,
            "parked": [message.to_dict() for message in opened.parked],
        }
    error = result.error
    return {
        "session": session,
        "turn": result.turn,
        "reason": result.reason,
        "text": result.text,
        "partial_text": result.partial_text,
        "error": {"code": error.code, "message": error.message} if error is not None else None,
        "cause": str(result.cause) if result.cause is not None else None,
        "usage": result.usage,
        "dropped": [message.to_dict() for message in result.dropped],
        "opened": repaired,
    }
