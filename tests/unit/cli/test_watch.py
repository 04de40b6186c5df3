"""`neoteny watch` and `status --follow`: true to the folder, on this machine alone, and changing nothing."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import pty
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from neoteny.cli import parser as cli
from neoteny.cli.watch import Watch, make_server
from neoteny.suite.follow import follow
from neoteny.suite.overview import look
from neoteny.suite.store.folder import ResultsFolder
from neoteny.suite.store.results import Results
from support.flipped_bits import snapshot
from support.suite import wait_until, write_experiment


class Answer(NamedTuple):
    """What the server sent."""

    status: int
    headers: dict[str, str]
    content: bytes


class Served(NamedTuple):
    """A page that is served, and its folder."""

    folder: Path
    experiment: Path
    address: str

    def ask(self, name: str = "", method: str = "GET", path: str | None = None, **headers: str) -> Answer:
        """The answer to a request, with these headers instead of the usual ones."""
        found = urlsplit(self.address)
        connection = http.client.HTTPConnection(found.netloc, timeout=30)
        with contextlib.closing(connection):
            connection.putrequest(method, f"{found.path}{name}" if path is None else path, skip_host=True)
            for key, value in {"Host": found.netloc, **headers}.items():
                connection.putheader(key, value)
            connection.endheaders()
            answer = connection.getresponse()
            return Answer(answer.status, dict(answer.getheaders()), answer.read())

    def read(self, name: str) -> Any:
        """The content of a JSON answer."""
        return json.loads(self.ask(name).content)


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The small experiment, of which one method is finished; do not change the folder."""
    place = tmp_path_factory.mktemp("begun")
    experiment = write_experiment(place / "small.py", tasks=3, examples=20)
    options = ("--out", str(place / "out"), "--jobs", "1", "--kernel", "reference")
    assert cli.main(["run", str(experiment), *options]) == 0
    plan = Results.open(place / "out")
    for path in sorted((place / "out" / "parts").glob("*.parquet"))[:1]:  # as if one had not begun
        path.unlink()
        path.with_suffix(".json").unlink()
        (place / "out" / "progress" / f"{path.stem}.json").unlink()
    assert len(plan.plan()["runs"]) == 12
    return place / "out", experiment


@pytest.fixture(scope="module")
def served(begun: tuple[Path, Path]) -> Iterator[Served]:
    watch = Watch(begun[0], begun[1])
    server, address = make_server(watch)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    watch.start()
    yield Served(*begun, address)
    watch.stop()
    server.shutdown()
    server.server_close()


# The numbers


def test_an_overview_counts_runs_by_what_happens_to_them(begun: tuple[Path, Path]) -> None:
    results = Results.open(begun[0])
    now = look(results)
    assert (now.planned, now.finished, now.waiting, now.left) == (12, 6, 6, 6)
    assert not now.ended
    (finished,) = now.stacks
    assert (finished.state, finished.runs, finished.task, finished.done) == ("finished", 6, 3, 1.0)
    assert now.describe() == "6 of 12 runs finished, 6 runs waiting"


def test_time_to_go_follows_from_the_speed_of_what_runs_and_what_is_left(
    begun: tuple[Path, Path], tmp_path: Path
) -> None:
    """By hand: 6 runs of 60 updates wait, 6 runs have 45 left; 2 updates per second in each of 6 runs: 630 / 12 s."""
    folder = Path(shutil.copytree(begun[0], tmp_path / "out"))
    results = Results.open(folder)
    (stack,) = results.progress()
    for path in folder.glob("parts/*"):
        path.unlink()
    entry = {"state": "running", "task": 0, "updates": 15, "updates_per_second": 2.0, "resumed_at": 5}
    results.write_progress(stack, {**results.progress()[stack], **entry})
    with results.lock(stack):
        now = look(ResultsFolder.open(folder))
    assert now.rate == 12.0
    assert now.to_go == pytest.approx((6 * 60 + 6 * 45) / 12)
    (view,) = now.stacks
    assert (view.state, view.done, view.to_go, view.retried) == ("running", 0.25, 22.5, True)
    assert look(ResultsFolder.open(folder)).stacks[0].state == "stopped"


# Who may read it


def test_the_page_and_its_data_are_served_with_the_token(served: Served) -> None:
    page = served.ask()
    assert page.status == 200
    assert page.headers.get("Content-Type") == "text/html; charset=utf-8"
    text = page.content.decode()
    assert "src=" not in text.partition("<script>")[0]  # nothing is loaded from anywhere
    policy = page.headers.get("Content-Security-Policy") or ""
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-eval" not in policy
    state = served.read("state.json")
    assert (state["finished"], state["planned"], state["counts"]["finished"]) == (6, 12, 1)
    assert page.headers.get("Referrer-Policy") == "no-referrer"
    assert page.headers.get("Cache-Control") == "no-store"


@pytest.mark.parametrize("host", ["example.org", "127.0.0.1", "127.0.0.1:1", "localhost.example.org", "0.0.0.0", ""])
def test_another_host_name_is_refused(served: Served, host: str) -> None:
    for name in ("", "state.json", "figures.json"):
        answer = served.ask(name, Host=host)
        assert answer.status == 403
        assert b"finished" not in answer.content


def test_localhost_is_this_machine(served: Served) -> None:
    assert served.ask("state.json", Host=f"localhost:{urlsplit(served.address).port}").status == 200


def test_an_address_without_the_token_is_refused(served: Served) -> None:
    token = urlsplit(served.address).path.strip("/")
    for path in (
        *("/", "/state.json", "//", f"/{token}", f"/{token[:-1]}/", f"/{token}x/state.json", "/../", "*"),
        *(f"/x/{token}/", f"/{token}/../{token}/", f"/?{token}", f"/x/?/{token}/", f"http://x/{token}"),
    ):
        assert served.ask(path=path).status == 403, path
    assert served.ask("other").status == 404
    assert len(token) >= 32


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_only_reading_is_allowed(served: Served, method: str) -> None:
    answer = served.ask(method=method)
    assert answer.status == 405
    assert answer.headers.get("Allow") == "GET, HEAD"


def test_head_answers_without_content(served: Served) -> None:
    answer = served.ask(method="HEAD")
    assert answer.status == 200
    assert answer.content == b""
    assert int(answer.headers.get("Content-Length") or 0) > 1_000_000


def test_it_listens_on_this_machine_alone_and_two_have_different_tokens(served: Served) -> None:
    watch = Watch(served.folder, served.experiment)
    servers = [make_server(watch) for _ in range(2)]
    assert [server.server_address[0] for server, _ in servers] == ["127.0.0.1"] * 2
    assert len({urlsplit(address).path for _, address in servers}) == 2
    for server, _ in servers:
        server.server_close()


def test_a_port_that_is_taken_is_an_error_in_words(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    port = str(urlsplit(served.address).port)
    assert cli.main(["watch", str(served.folder), str(served.experiment), "--port", port]) == 1
    assert f"Port {port} cannot be listened on" in capsys.readouterr().err


def test_a_folder_is_not_changed_by_being_watched(served: Served) -> None:
    before = snapshot(served.folder)
    for name in ("", "state.json", "figures.json"):
        served.ask(name)
    assert snapshot(served.folder) == before


# Figures


def test_figures_are_drawn_and_sent_once_per_version(served: Served) -> None:
    wait_until(lambda: bool(served.read("figures.json")["charts"]))
    figures = served.read("figures.json")
    (chart,) = figures["charts"]
    assert chart["title"] == "error"
    assert len(chart["series"]) == 2
    answer = served.ask(f"figures.json?version={figures['version']}")
    assert answer.status == 204
    assert answer.content == b""


def test_without_the_file_of_a_users_experiment_what_was_saved_is_shown(served: Served) -> None:
    """Reading a folder runs nothing of it."""
    watch = Watch(served.folder)
    found = watch._draw()
    assert found["note"].startswith("As `neoteny run` saved them on")
    assert len(found["charts"]) == 1


def test_a_file_that_did_not_make_the_folder_is_refused(
    served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_experiment(tmp_path / "small.py", tasks=5)
    assert cli.main(["watch", str(served.folder), str(other)]) == 1
    assert "is not the file that" in capsys.readouterr().err


def test_a_figure_that_fails_is_said_on_the_page(served: Served, tmp_path: Path) -> None:
    broken = tmp_path / "small.py"
    text = served.experiment.read_text()
    broken.write_text(text.replace('    return [Chart("error"', '    raise KeyError("odd")\n    return [Chart("error"'))
    watch = Watch(served.folder, broken, trust=True)
    watch.start()
    wait_until(lambda: b"cannot be drawn now" in (watch.figures("") or b""))
    watch.stop()
    assert b"odd" in (watch.figures("") or b"")


# In a terminal


def test_follow_prints_a_line_per_change_and_ends_when_all_is_done(
    begun: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(begun[0], tmp_path / "out"))
    waits = 0

    def work(seconds: float) -> None:
        """What goes on in the folder while `follow` waits."""
        nonlocal waits
        waits += 1
        if waits == 3:
            options = ("--out", str(folder), "--jobs", "1", "--kernel", "reference")
            assert cli.main(["run", str(begun[1]), *options]) == 0

    follow(ResultsFolder.open(folder), work)
    lines = [line for line in capsys.readouterr().out.splitlines() if "runs finished" in line]
    assert lines == ["6 of 12 runs finished, 6 runs waiting", "12 of 12 runs finished"]


def test_the_table_of_a_terminal_names_stacks_and_their_states(served: Served) -> None:
    """In a real pseudo-terminal; a folder with nothing left, so that it ends by itself."""
    master, slave = pty.openpty()
    os.set_inheritable(slave, True)
    program = (
        "import dataclasses, sys\n"
        "from neoteny.suite import follow\n"
        "from neoteny.suite.store.folder import ResultsFolder\n"
        "class Enough(Exception): pass\n"
        "def stop(seconds): raise Enough\n"
        "try:\n    follow.follow(ResultsFolder.open(__import__('pathlib').Path(sys.argv[1])), stop)\n"
        "except Enough: pass\n"
    )
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "160", "LINES": "40"}
    done = subprocess.run(
        [sys.executable, "-c", program, str(served.folder)], stdout=slave, env=environment, timeout=60
    )
    os.close(slave)
    shown = b""
    while True:
        try:
            more = os.read(master, 65536)
        except OSError:
            break
        if not more:
            break
        shown += more
    os.close(master)
    assert done.returncode == 0
    text = shown.decode()
    assert "6 of 12 runs finished" in text
    assert "finished" in text
    assert "3/3" in text
    assert "\x1b[" in text  # colours


def test_the_address_is_in_a_log_while_the_page_is_served(served: Served, tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    command = [sys.executable, "-m", "neoteny", "watch", served.folder]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open(log, "w") as output, subprocess.Popen(command, stdout=output, env=buffered) as process:
        try:
            wait_until(lambda: "http://127.0.0.1:" in log.read_text(), 60)
            assert process.poll() is None
        finally:
            process.kill()


def test_follow_needs_rich_in_a_terminal_only_and_says_so(begun: tuple[Path, Path]) -> None:
    program = (
        "import sys\n"
        "class Missing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'rich': raise ModuleNotFoundError('No module named rich', name='rich')\n"
        "sys.meta_path.insert(0, Missing())\n"
        "sys.stdout.isatty = lambda: True\n"
        "from neoteny.cli import main\nsys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "status", "--follow", str(begun[0])], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "rich" in done.stderr
    assert "pip install 'neoteny[suite]'" in done.stderr
