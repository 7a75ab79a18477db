"""A Chat Completions server for benchmarks, a process of its own: its work is not in our figures.

`python -m tests.benchmarks._server` writes its port and serves until its standard input ends. The
model's name says what an answer is: "stream:5000" streams so many chunks as fast as they are read,
"answer" a short one.
"""

import contextlib
import json
import socketserver
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler
from typing import Any, Dict, Iterator

WORDS = "the quick brown fox jumps over the lazy dog and runs away again".split()


def chunk(delta: Dict[str, Any], finish: Any = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    value = {
        "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": [choice]
    }  # fmt: skip
    event = b"data: " + json.dumps(value).encode() + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(event), event)


def answer(count: int) -> bytes:
    pieces = [chunk({"role": "assistant", "content": ""})]
    pieces += [chunk({"content": f"{WORDS[number % len(WORDS)]} "}) for number in range(count)]
    done = b"data: [DONE]\n\n"
    pieces += [chunk({}, "stop"), b"%x\r\n%s\r\n" % (len(done), done), b"0\r\n\r\n"]
    return b"".join(pieces)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    answers: Dict[str, bytes] = {}

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name = body["model"]
        if name not in self.answers:
            self.answers[name] = answer(int(name.partition(":")[2] or 5))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(self.answers[name])

    def log_message(self, *args: Any) -> None:
        pass


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 1024


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """The base URL of a server that runs while the block does."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.benchmarks._server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(child.stdout.readline())}/v1"
        finally:
            child.stdin.close()


if __name__ == "__main__":
    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(server.server_address[1], flush=True)
        sys.stdin.read()
        server.shutdown()
