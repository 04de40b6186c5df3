"""`neoteny watch`: a page about a results folder while it is written, on this machine alone, that changes nothing.

The server listens on 127.0.0.1. Every address holds a random token, and a request with another host name is refused, so
that neither another user of the machine nor a page of the web that names this address can read it.
"""

from __future__ import annotations

import http.server
import json
import secrets
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from neoteny.cli.trust import find_experiment
from neoteny.report.analysis import read_saved
from neoteny.report.live import describe_figures, render_live
from neoteny.suite.overview import look
from neoteny.suite.store.errors import StoreError
from neoteny.suite.store.results import Results

ADDRESS = "127.0.0.1"
FIGURES_SECONDS = 10.0
"""The least time between two drawings of the figures; they take at most a tenth of one processor."""
STATE_SECONDS = 1.0
"""How long a look at the folder serves all who ask."""
PAGE_SECONDS = (2.0, 5.0)
"""How often the page asks for the state, and for the figures."""
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class Watch:
    """What the page shows of a folder: read when it is asked for, drawn in a thread of its own.

    Args:
        folder: the results folder.
        file: the user's experiment file, which draws the figures; None: the package's own, or what was saved.
        trust: whether to run a file that is not known to have made the folder.
    """

    def __init__(self, folder: Path, file: Path | None = None, trust: bool = False) -> None:
        self._results = Results.open(folder)
        self._drawn = Results.open(folder)  # of the thread that draws
        self._experiment = find_experiment(self._results, file, trust)
        about = self._results.about
        self.page, self.policy = render_live(about["experiment"], about["scale"], str(folder), *PAGE_SECONDS)
        self._lock = threading.Lock()
        self._state, self._looked_at = b"", 0.0
        self._figures = describe_figures([], "They are drawn when the first tasks are finished.")
        self._stop = threading.Event()
        self._drawing = threading.Thread(target=self._draw_again_and_again, daemon=True)

    def state(self) -> bytes:
        """How far the folder is, as JSON."""
        with self._lock:
            if time.monotonic() - self._looked_at >= STATE_SECONDS:
                self._state = json.dumps(look(self._results).to_json()).encode()
                self._looked_at = time.monotonic()
            return self._state

    def figures(self, version: str) -> bytes | None:
        """The figures so far, as JSON; None where they are those of this version."""
        found = self._figures
        return None if found["version"] == version else json.dumps(found).encode()

    def start(self) -> None:
        """Begin to draw."""
        self._drawing.start()

    def stop(self) -> None:
        """End the thread that draws."""
        self._stop.set()

    def _draw_again_and_again(self) -> None:
        before: Any = None
        while True:
            began = time.monotonic()
            try:
                now = self._signature()
                if now != before:
                    self._figures = self._draw()
                    before = now
            except Exception as error:  # a page that says why is better than a thread that is gone
                self._figures = describe_figures([], f"The figures cannot be drawn now: {error}")
            if self._stop.wait(max(FIGURES_SECONDS, 10 * (time.monotonic() - began))):
                return

    def _signature(self) -> Any:
        unfinished = [(path.name, path.stat().st_mtime_ns) for path in self._drawn.unfinished_tables()]
        return self._drawn.signatures(), unfinished

    def _draw(self) -> dict[str, Any]:
        results = self._drawn
        if self._experiment is None:
            saved = read_saved(results.root, results.sealed)
            if saved is None:
                return describe_figures([], "This experiment's own file draws them: `neoteny watch DIR FILE.py`.")
            return describe_figures(saved.analysis.charts, f"As `neoteny run` saved them on {saved.when}.")
        frame = results.frame(so_far=True)
        if frame.empty:
            return describe_figures([], "They are drawn when the first tasks are finished.")
        return describe_figures(self._experiment.draw(frame))


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away in the middle of an answer is no event."""


def make_server(watch: Watch, port: int = 0, token: str = "") -> tuple[http.server.ThreadingHTTPServer, str]:
    """A server on this machine, and the address of the page.

    Args:
        watch: what it shows.
        port: 0 takes a free one.
        token: the secret in the address; "" makes one.

    Raises:
        StoreError: the port is taken.
    """
    token = token or secrets.token_urlsafe(24)
    try:
        server = _Server((ADDRESS, port), _make_handler(watch, token))
    except OSError as error:
        raise StoreError(
            f"Port {port} cannot be listened on ({error.strerror}). Choose another with --port, or leave it out: a "
            "free one is taken."
        ) from error
    return server, f"http://{ADDRESS}:{_port_of(server)}/{token}/"


def _port_of(server: Any) -> int:
    """The port that a server listens on."""
    return int(server.socket.getsockname()[1])


def _make_handler(watch: Watch, token: str) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        """Answers GET and HEAD for three addresses, and refuses everything else."""

        timeout = 30
        server_version, sys_version = "neoteny", ""
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            refusal = self._refusal()
            if refusal:
                self._answer(HTTPStatus.FORBIDDEN, refusal.encode(), "text/plain")
                return
            found = urlsplit(self.path)
            answers: dict[str, Callable[[], None]] = {
                "": lambda: self._answer(HTTPStatus.OK, watch.page.encode(), "text/html", watch.policy),
                "state.json": lambda: self._answer(HTTPStatus.OK, watch.state(), "application/json"),
                "figures.json": lambda: self._answer_figures(parse_qs(found.query).get("version", [""])[0]),
            }
            answer = answers.get(found.path.removeprefix(f"/{token}/"))
            if answer is None:
                self._answer(HTTPStatus.NOT_FOUND, b"There is nothing here.", "text/plain")
                return
            try:
                answer()
            except StoreError as error:
                self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, str(error).encode(), "text/plain")

        do_HEAD = do_GET

        def do_POST(self) -> None:
            self.close_connection = True  # what it sends is not read
            self._answer(HTTPStatus.METHOD_NOT_ALLOWED, b"Only GET and HEAD: this page changes nothing.", "text/plain")

        do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_TRACE = do_CONNECT = do_POST

        def _refusal(self) -> str:
            """Why a request is refused; "" if it is not."""
            port = _port_of(self.server)
            hosts = self.headers.get_all("Host") or []
            if len(hosts) != 1 or hosts[0] not in (f"{ADDRESS}:{port}", f"localhost:{port}"):
                return "Refused: this page is for this machine alone."
            given = urlsplit(self.path).path.split("/")
            if len(given) != 3 or not secrets.compare_digest(given[1].encode(), token.encode()):
                return "Refused: the address must be the one that `neoteny watch` printed."
            return ""

        def _answer_figures(self, version: str) -> None:
            content = watch.figures(version)
            status = HTTPStatus.NO_CONTENT if content is None else HTTPStatus.OK
            self._answer(status, content or b"", "application/json")

        def _answer(self, status: HTTPStatus, content: bytes, kind: str, policy: str = "default-src 'none'") -> None:
            self.send_response(status)
            for name, value in {**_HEADERS, "Content-Security-Policy": policy}.items():
                self.send_header(name, value)
            if status is HTTPStatus.METHOD_NOT_ALLOWED:
                self.send_header("Allow", "GET, HEAD")
            if status is not HTTPStatus.NO_CONTENT:
                self.send_header("Content-Type", f"{kind}; charset=utf-8")
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD" and status is not HTTPStatus.NO_CONTENT:
                self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            """The terminal is for the person."""

    return Handler


def command_watch(folder: Path, file: Path | None, trust: bool, port: int) -> int:
    """Serve the page until Ctrl-C."""
    from neoteny.cli.show import say

    watch = Watch(folder, file, trust)
    server, address = make_server(watch, port)
    watch.start()
    say(f"{folder} is shown at\n\n    {address}\n\non this machine alone, until Ctrl-C. It changes nothing.")
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        say("Stopped.")
    finally:
        watch.stop()
        server.server_close()
    return 0
