"""What our figures are measured against: the same HTTP with bare `requests`, and nothing else."""

import json
import sqlite3
from typing import Any, List

import requests

__all__ = ["commit", "stream", "turn"]


def stream(session: requests.Session, url: str, model: str) -> int:
    """Read a streamed answer as people do by hand; return how many chunks came."""
    body = {"model": model, "stream": True, "messages": [{"role": "user", "content": "go"}]}
    count = 0
    with session.post(f"{url}/chat/completions", json=body, stream=True) as response:
        for line in response.iter_lines():
            if line and line != b"data: [DONE]":
                json.loads(line[6:])
                count += 1
    return count


def turn(session: requests.Session, url: str, messages: List[Any], database: sqlite3.Connection) -> None:
    """One request with the whole history, and as many durable commits as one of our turns makes."""
    body = {"model": "answer", "stream": True, "messages": messages}
    commit(database)  # the accepted message
    commit(database)  # before the request
    with session.post(f"{url}/chat/completions", json=body, stream=True) as response:
        said = [json.loads(line[6:]) for line in response.iter_lines() if line and line != b"data: [DONE]"]
    commit(database)  # the turn's ending
    text = "".join(item["choices"][0]["delta"].get("content") or "" for item in said)
    messages.append({"role": "assistant", "content": text})


def commit(database: sqlite3.Connection) -> None:
    database.execute("INSERT INTO events(data) VALUES (?)", ("x" * 200,))
    database.commit()
