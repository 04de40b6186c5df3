"""A server of small files on this machine, which can be told to fail."""

from __future__ import annotations

import hashlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

from neoteny.problems.data.datasets import Dataset
from neoteny.problems.data.files import File

CONTENT = np.random.default_rng(0).bytes(700_000)
SECOND = b"a second, small file"


class Server(ThreadingHTTPServer):
    """Serves files, and misbehaves as told."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = {"first.bin": CONTENT, "second.bin": SECOND}
        self.knows_ranges = True
        self.cuts: list[int] = []  # after how many bytes the next answers end
        self.asked: list[tuple[str, str | None]] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"


class Handler(BaseHTTPRequestHandler):
    server: Server  # type: ignore[assignment]

    def do_GET(self) -> None:
        name, wanted = self.path.strip("/"), self.headers.get("Range")
        self.server.asked.append((name, wanted))
        if name not in self.server.content:
            self.send_error(404)
            return
        content, start = self.server.content[name], 0
        if wanted and self.server.knows_ranges:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        rest = content[start:]
        self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        if name == "first.bin" and self.server.cuts:
            rest = rest[: self.server.cuts.pop(0)]
        self.wfile.write(rest)

    def log_message(self, format: str, *args: object) -> None:  # the name is the standard library's
        pass


def file_of(name: str, content: bytes) -> File:
    return File(name, len(content), hashlib.sha256(content).hexdigest())


def known_from(*mirrors: str) -> Dataset:
    files = (file_of("first.bin", CONTENT), file_of("second.bin", SECOND))
    return Dataset("tiny", "digits", "two files", "none", files=files, mirrors=mirrors)
