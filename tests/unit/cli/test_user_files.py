"""Experiment files of a user that misbehave: each is reported with its own file and line, and nothing else is lost."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from neoteny import experiments
from neoteny.cli import parser as cli
from neoteny.experiments import ExperimentError
from neoteny.suite.store.results import Results
from support.suite import write_experiment


def write(folder: Path, before: str = "", after: str = "", **inside: str) -> Path:
    """The small experiment with lines before it, after it, or at the beginning of a function."""
    path = write_experiment(folder / "mine.py", tasks=2, examples=20)
    text = path.read_text()
    for function, lines in inside.items():
        head = next(line for line in text.splitlines() if line.startswith(f"def {function}("))
        text = text.replace(head, f"{head}\n    {lines}")
    path.write_text(before + text + after)
    return path


def line_of(path: Path, words: str) -> str:
    """How a message names the line of a file that has these words."""
    number = next(number for number, line in enumerate(path.read_text().splitlines(), 1) if words in line)
    return f"{path}, line {number}: "


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    capsys.readouterr()
    assert cli.main([str(each) for each in arguments]) == 1
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert said.startswith("neoteny: ")
    return said


# When the file is read, and in sweep


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("import sys; sys.exit(0)", "SystemExit: 0 (an experiment file must not end the program)"),
        ("raise SystemExit", "SystemExit (an experiment"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt (an experiment"),
        ("raise GeneratorExit", "GeneratorExit (an experiment"),
        ("raise StopIteration(3)", "StopIteration: 3"),
        ("f = lambda: f(); f()", "RecursionError: maximum recursion depth exceeded"),
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("{}['absent']", "KeyError: 'absent'"),
        ("int('x')", "ValueError: invalid literal"),
        ("import json; json.loads('{')", "(raised in json.decoder, line "),
        ("SGD(-1.0)", "SGD: step_size must be"),
    ],
)
def test_an_error_names_the_line(line: str, error: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inside = write(tmp_path, sweep=line)
    said = complaint(capsys, "run", inside, "--out", tmp_path / "out")
    assert said.startswith(f"neoteny: {line_of(inside, line)}")
    assert error in said
    at_import = write(tmp_path, before=f"from neoteny.methods import SGD\n{line}\n")
    assert complaint(capsys, "run", at_import, "--out", tmp_path / "out").startswith(f"neoteny: {at_import}, line 2: ")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has no `sweep`"),
        (b"x = 1\ndef f(:\n", "mine.py, line 2: SyntaxError: invalid syntax"),
        (b"x = 1\nif x:\ny = 2\n", "mine.py, line 3: IndentationError: "),
        (b"x = '\xe9'\n", "mine.py, line 1: SyntaxError: (unicode error)"),
        (b"\x7fELF\x00\x00\x01", "mine.py is not a Python file"),
        (b"sweep = figure = 5\nclaims = ()\n", "sweep must be a function; got int: 5"),
        (b"sweep = figure = print\nclaims = 'many'\n", "claims must be a tuple of Claim; got str: 'many'"),
        (b"sweep = figure = print\nclaims = (print,)\n", "number 1 of claims must be a Claim"),
        (b"sweep = figure = print\nclaims = unchecked = (5,)\n", "must be a "),
    ],
)
def test_a_file_that_is_no_experiment(
    content: bytes, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.py"
    path.write_bytes(content)
    assert message in complaint(capsys, "run", path, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_a_pipe_and_a_name_of_the_package_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder.py").mkdir()
    assert "it is not a file" in complaint(capsys, "run", tmp_path / "folder.py")
    os.mkfifo(tmp_path / "pipe.py")
    assert "it is not a file" in complaint(capsys, "run", tmp_path / "pipe.py")
    named = write(tmp_path).rename(tmp_path / "scr_cbp.py")
    assert "would be called scr-cbp" in complaint(capsys, "run", named, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_claims_must_have_names_of_their_own(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match=r"mine\.py: two claims are called 'cbp-better'"):
        experiments.load(str(write(tmp_path, after="claims = (*claims, *claims)\n")))
    with pytest.raises(ExperimentError, match="statement must be text; got int: 5"):
        experiments.load(str(write(tmp_path, after="claims = (Claim('a', 5, 'b', check),)\n")))
    with pytest.raises(ExperimentError, match="check must be a function"):
        experiments.load(str(write(tmp_path, after="claims = (Claim('a', 'b', 'c', None),)\n")))


def test_a_real_ctrl_c_is_not_an_error_of_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, before="import signal\nsignal.raise_signal(signal.SIGINT)\n")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a background job of some shells
    try:
        assert cli.main(["run", str(path), "--out", str(tmp_path / "out")]) == 130
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_what_a_file_changes_around_it_holds_for_it_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("elsewhere", "library"):
        (tmp_path / folder).mkdir()
    (tmp_path / "elsewhere" / "runs.txt").write_text("2")
    (tmp_path / "library" / "lazily_imported.py").write_text("TITLE = 'found'\n")
    changes = f"import os, sys\nos.chdir('elsewhere')\nsys.path[:] = [{str(tmp_path / 'library')!r}, *sys.path]\n"
    write(
        tmp_path,
        before=changes,
        sweep="from pathlib import Path; assert Path('runs.txt').read_text(); import lazily_imported",
    )
    before = list(sys.path)
    experiment = experiments.load("mine.py")
    assert len(experiment.make_sweep("smoke").settings) == 4
    assert Path.cwd() == tmp_path
    assert sys.path == before
    sys.modules.pop("lazily_imported")


def test_the_text_that_was_read_is_what_runs_and_no_compiled_file_is_used_or_left(tmp_path: Path) -> None:
    path = write(tmp_path)
    code = experiments.UserCode.read(path)
    path.write_text("raise RuntimeError('changed meanwhile')\n")
    assert len(experiments.load_file(code).claims) == 1
    assert not (tmp_path / "__pycache__").exists()


def test_the_whole_traceback_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NEOTENY_TRACEBACK", "1")
    with pytest.raises(ExperimentError) as caught:
        cli.main(["run", str(write(tmp_path, sweep="{}['absent']")), "--out", str(tmp_path / "out")])
    assert isinstance(caught.value.__cause__, KeyError)


def test_an_error_of_ours_is_not_blamed_on_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neoteny.cli.prepare.describe", lambda sweep: {}["ours"])
    with pytest.raises(KeyError, match="ours"):
        cli.main(["run", str(write(tmp_path)), "--out", str(tmp_path / "out")])


# In figure and in claims: the runs are finished


FAILING = {
    "raises": ("{}['absent']", "KeyError: 'absent'"),
    "exits": ("raise SystemExit(0)", "SystemExit: 0 (an experiment file"),
    "wrong type": ("return 5", "got int: 5"),
}


@pytest.mark.parametrize("how", FAILING)
def test_a_figure_that_fails_leaves_the_rest_of_the_report(
    how: str, out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line, error = FAILING[how]
    path = write(tmp_path, figure=line)
    said = complaint(capsys, "report", out, path, "--trust")
    place = line_of(path, "def figure" if how == "wrong type" else line)
    assert f"The figure could not be drawn. {place}" in said
    assert error in said
    page = (out / "report.html").read_text()
    assert "What failed in the experiment&#39;s file" in page or "What failed in the experiment's file" in page
    assert place in page
    assert "Error of every setting" in page
    assert "Continual backpropagation has a lower error." in page


@pytest.mark.parametrize("how", FAILING)
def test_a_check_that_fails_costs_its_own_verdict_only(
    how: str, out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line, error = FAILING[how]
    lines = f"def broken(frame):\n    {line}\n\n\nclaims = (Claim('broken', 'Broken.', 'nowhere', broken), *claims)\n"
    path = write(tmp_path, after=lines)
    capsys.readouterr()
    assert cli.main(["claims", str(out), str(path), "--trust"]) == 1
    said = capsys.readouterr()
    place = line_of(path, "def broken" if how == "wrong type" else line)
    assert f"[inconclusive] Broken. (nowhere)\n    the check failed: {place}" in said.out
    assert error in said.out
    assert "Continual backpropagation has a lower error." in said.out
    assert f"neoteny: Claim 'broken' could not be checked. {place}" in said.err


def test_runs_are_kept_and_finish_once_the_figure_is_corrected(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = Results.open(out).frame()
    path = write(tmp_path, figure="1 / 0").rename(tmp_path / "small.py")
    command = ("run", path, "--out", out, "--jobs", "1", "--kernel", "reference")
    assert cli.main([str(each) for each in command]) == 1
    said = capsys.readouterr().err
    assert f"{line_of(path, '1 / 0')}ZeroDivisionError" in said
    assert "0 stacks to train" in said
    assert "Finished runs are kept." in said
    assert Results.open(out).frame().equals(before)
    assert "The figure could not be drawn" in complaint(capsys, "report", out)  # as it was saved
    write(tmp_path).rename(path)
    assert cli.main([str(each) for each in command]) == 0
    assert cli.main(["report", str(out)]) == 0


def test_a_file_that_changes_while_processes_start_is_not_run_in_two_versions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = "\n\nwith open(__file__, 'a') as file:\n    file.write('# later\\n')\n"
    path, out = write(tmp_path, after=changes), tmp_path / "out"
    assert cli.main(["run", str(path), "--out", str(out), "--jobs", "2", "--kernel", "reference"]) == 1
    said = capsys.readouterr().err
    assert said.count("was changed after this command had read it") == 1
    assert "Repeat the command: it runs the file as it is now." in said
    assert not list(out.glob("parts/*"))


def test_figure_and_checks_get_tables_of_their_own(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil = "frame['value'] = 0.0; frame['method'] = 'none'"
    assert cli.main(["claims", str(out), str(write(tmp_path)), "--trust"]) == 0
    expected = capsys.readouterr().out
    spoiling = write(
        tmp_path, figure=spoil, after=f"def spoils(frame):\n    {spoil}\n    return above(frame['value'])\n"
    )
    text = spoiling.read_text() + "claims = (Claim('spoils', 'Spoils.', 'x', spoils), *claims)\n"
    spoiling.write_text(text)
    assert cli.main(["claims", str(out), str(spoiling), "--trust"]) == 0
    assert expected.splitlines()[:2] == capsys.readouterr().out.splitlines()[2:4]


def test_a_figure_may_yield_its_charts_and_fail_while_it_does(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, figure="yield Chart('One', 'x', 'y')\n    yield Chart('Two', 'x', 'y'); return")
    assert cli.main(["report", str(out), str(path), "--trust"]) == 0
    assert (out / "figures" / "02-two.png").is_file()
    path = write(tmp_path, figure="yield Chart('One', 'x', 'y')\n    1 / 0")
    assert line_of(path, "1 / 0") in complaint(capsys, "report", out, path, "--trust")
