"""Figures and claims of a user's experiment: saved when it runs, shown without its file, made again with it."""

from __future__ import annotations

import json
import math
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from neoteny.cli import parser as cli
from neoteny.report.analysis import Analysis, Stated, read_saved, save_analysis
from neoteny.report.axes import prepare
from neoteny.report.chart import Chart, Series
from neoteny.report.claim import Coverage, Outcome, Unchecked, Verdict
from neoteny.report.figures import write_figures
from neoteny.report.page import Report, render_page
from neoteny.suite.store.errors import StoreError
from support.tampering import tamper

SAVED = "The figures and claims are those that `neoteny run` saved on "


def say(capsys: pytest.CaptureFixture[str], *arguments: str | Path, status: int = 0) -> str:
    capsys.readouterr()
    assert cli.main([str(each) for each in arguments]) == status
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    return said.err if status else said.out


def test_what_was_saved_is_what_the_file_says(trained: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    without, by_file = say(capsys, "claims", out), say(capsys, "claims", out, trained / "small.py")
    assert SAVED in without
    assert re.search(r"saved on \d{4}-\d\d-\d\d \d\d:\d\d UTC\. To make them again, give its file", without)
    assert without.startswith(by_file.rstrip("\n"))
    assert SAVED not in by_file
    pages = []
    for arguments in ((out,), (out, trained / "small.py")):
        assert "Error of every setting" in say(capsys, "report", *arguments)
        pages.append((out / "report.html").read_text())
    assert SAVED.replace("`", "") in re.sub("</?code>", "", pages[0])
    assert re.sub(r' *<p class="note">.*?</p>', "", pages[0]).split() == pages[1].split()


def test_only_the_file_that_made_the_folder_is_run(
    trained: Path, out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "small.py"
    other.write_text((trained / "small.py").read_text().replace("a lower error", "no lower error"))
    said = say(capsys, "claims", out, other, status=1)
    assert f"{other} is not the file that {out} was made with" in said
    assert f"`neoteny run {other} --out {out}`" in said
    assert "has no lower error." in say(capsys, "claims", out, other, "--trust")
    assert "has a lower error." in say(capsys, "claims", out, "--trust")
    assert SAVED not in say(capsys, "claims", out, "--trust")
    say(capsys, "run", other, "--out", out, "--jobs", "1", "--kernel", "reference")
    assert "has no lower error." in say(capsys, "claims", out)
    assert "has no lower error." in say(capsys, "claims", out, other)


def test_what_saved_figures_cannot_do_is_said_with_the_way_to_do_it(
    trained: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for options in (("--so-far",), ("--tasks", "1")):
        for command in ("claims", "report"):
            said = say(capsys, command, out, *options, status=1)
            assert "--so-far and --tasks need the code of the experiment" in said
            assert f"`neoteny report {out} FILE.py {' '.join(options)}`" in said
        assert "lower error" in say(capsys, "claims", out, trained / "small.py", *options)


def test_a_command_to_repeat_can_be_pasted_where_the_folder_has_a_space_in_its_name(
    trained: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spaced = out.rename(out.with_name("my results"))
    assert f"`neoteny report '{spaced}' FILE.py`" in say(capsys, "claims", spaced)
    assert f"`neoteny status '{spaced}'`" in say(
        capsys, "claims", spaced, trained / "small.py", "--tasks", "9", status=1
    )
    changed = out.with_name("my file.py")
    changed.write_text((trained / "small.py").read_text().replace("a lower error", "no lower error"))
    assert f"`neoteny run '{changed}' --out '{spaced}'`" in say(capsys, "claims", spaced, changed, status=1)
    repeated = changed.rename(changed.with_name("small.py"))
    done = say(capsys, "run", repeated, "--out", spaced, "--jobs", "1", "--kernel", "reference")
    assert f"`neoteny report '{spaced}'`" in done
    assert f"`neoteny claims '{spaced}'`" in done


def test_a_report_of_a_folder_that_cannot_be_written_says_what_can_be_done_instead(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    disc = tmp_path / "disc"
    disc.mkdir()
    if subprocess.run(["mount", "--bind", out, disc], capture_output=True).returncode:
        pytest.skip("mounting a folder needs privileges")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", disc], check=True)
        assert "lower error" in say(capsys, "claims", disc)
        said = say(capsys, "report", disc, status=1)
        assert f"{disc} cannot be written, and a report is written into its folder. Make a copy of the folder" in said
    finally:
        subprocess.run(["umount", disc], check=True)


def test_a_folder_of_an_earlier_version_is_read_with_its_file(
    trained: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (out / "analysis.json").unlink()
    content = json.loads((out / "experiment.json").read_text())
    old = {key: content[key] for key in content if key not in ("experiment_sha256", "checksum", "format")}
    (out / "experiment.json").write_text(json.dumps({**old, "format": 1}))
    said = say(capsys, "claims", out, status=1)
    assert "none were saved" in said
    assert "with --trust" in said
    assert "lower error" in say(capsys, "claims", out, trained / "small.py")
    assert "lower error" in say(capsys, "claims", out, "--trust")
    assert "is not the file" in say(capsys, "claims", out, Path(__file__), status=1)


def test_saved_figures_of_fewer_runs_or_another_file_say_so(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tamper(out / "analysis.json", runs=6, sha256="0" * 64)
    said = say(capsys, "claims", out)
    assert ", with another version of the file, of 6 finished runs where there are 12 now. To make" in said


def test_a_package_experiment_takes_no_file(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evidence = Path(__file__).parents[3] / "evidence" / "mnist-width-laptop"
    said = say(capsys, "claims", evidence, trained / "small.py", status=1)
    assert "an experiment of the package, which needs no file" in said


# The file in which an analysis is saved


def make_analysis() -> Analysis:
    line = Series("BP", range(3), [float(np.float32(1)), math.nan, math.inf], [0.5, 0.1, 0], [1.5, 2, 3], "m", True)
    return Analysis(
        title="T",
        description="D",
        metric="error",
        higher_is_better=False,
        charts=(Chart("A", "x", "y", [line], "c", "g", True, True, True), Chart("Empty", "x", "y")),
        claims=((Stated("n", "s", "f"), Verdict(Outcome.FAILS, "e", Coverage.PART)),),
        unchecked=(Unchecked("s", "f", "r"),),
        chosen=(("a", "b", "c"),),
        failures=("one",),
    )


def test_an_analysis_is_read_as_it_was_saved(tmp_path: Path) -> None:
    assert read_saved(tmp_path) is None
    made = make_analysis()
    save_analysis(tmp_path, made, 5, "abc")
    saved = read_saved(tmp_path)
    assert saved is not None
    assert (saved.runs, saved.sha256) == (5, "abc")
    read = saved.analysis
    assert (read.claims, read.unchecked, read.chosen, read.failures) == (
        made.claims, made.unchecked, made.chosen, made.failures,
    )  # fmt: skip
    assert [repr(prepare(chart)) for chart in read.charts] == [repr(prepare(chart)) for chart in made.charts]


CLAIM = {"name": "", "statement": "", "source": "", "outcome": "holds", "evidence": "", "coverage": "all of it"}


@pytest.mark.parametrize(
    "changes",
    [
        {"format": 99},
        {"title": 5},
        {"metric": None},
        {"higher_is_better": "yes"},
        {"runs": "many"},
        {"charts": {}},
        {"charts": ["chart"]},
        {"charts": [{"series": []}]},
        {"charts": [{"title": "a", "x_label": "b", "y_label": "c", "series": [], "more": 1}]},
        {"charts": [{"title": [], "x_label": "b", "y_label": "c", "series": []}]},
        {
            "claims": [
                {"name": "a", "statement": "b", "source": "c", "outcome": "perhaps", "evidence": "", "coverage": ""}
            ]
        },
        {"claims": [[]]},
        {"chosen": [["one"]]},
        {"unchecked": [{"statement": "only"}]},
        {"failures": [1]},
        {"failures": "one"},
    ],
)
def test_what_is_not_an_analysis_is_refused(changes: dict[str, object], tmp_path: Path) -> None:
    save_analysis(tmp_path, make_analysis(), 5, "abc")
    tamper(tmp_path / "analysis.json", **changes)
    with pytest.raises(StoreError, match=r"analysis\.json is damaged: .*neoteny run"):
        read_saved(tmp_path)


@pytest.mark.parametrize("number", ["10" * 400, '"1"', "true", "[1]", "{}"])
def test_a_point_that_is_no_number_is_refused(number: str, tmp_path: Path) -> None:
    save_analysis(tmp_path, make_analysis(), 5, "abc")
    content = json.loads((tmp_path / "analysis.json").read_text())
    content["charts"][0]["series"][0]["y"] = [json.loads(number), 1.0, 2.0]
    tamper(tmp_path / "analysis.json", charts=content["charts"])
    with pytest.raises(StoreError, match=r"analysis\.json is damaged: "):
        read_saved(tmp_path)


# Charts of a user


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": 0.01}, "name must be text; got 0.01"),
        ({"x": ["a", "b"]}, "x must be a list of numbers"),
        ({"y": [1.0, None]}, "y must be a list of numbers"),
        ({"y": [[1.0], [2.0]]}, "y must be a list of numbers"),
        ({"y": [[1.0], [2.0, 3.0]]}, "y must be a list of numbers"),
        ({"y": 5.0}, "y must be a list of numbers"),
        ({"y": [1.0]}, "must be of one length"),
        ({"low": [1.0, 2.0]}, "must be of one length"),
        ({"y": [1j, 2.0]}, "y must be a list of numbers"),
    ],
)
def test_a_line_that_cannot_be_drawn_is_refused_where_it_is_made(fields: dict[str, object], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        Series(**{"name": "BP", "x": [1, 2], "y": [1.0, 2.0], **fields})  # pyright: ignore[reportArgumentType]


def test_a_chart_of_something_else_is_refused() -> None:
    with pytest.raises(TypeError, match="series must be a list of Series"):
        Chart("A", "x", "y", [[1, 2]])  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="x_label must be text"):
        Chart("A", 5, "y")  # pyright: ignore[reportArgumentType]


def test_any_numbers_can_be_drawn(tmp_path: Path) -> None:
    numbers = [0.0, -0.0, 1e-320, 5e-324, -1e308, 1e308, 1e299, -1e299, math.nan, math.inf, -math.inf, np.float32(1)]
    count = len(numbers)
    series = {
        "Points": [Series("a", [numbers[i]], [numbers[-1 - i]]) for i in range(count)],
        "All": [Series("a", numbers, numbers[::-1], numbers, numbers)],
        "Nothing": [Series("a", [], []), Series("b", [math.nan], [math.nan])],
    }
    charts = [
        Chart(name, "x", "y", lines, "", "One figure", log, log, log)
        for name, lines in series.items()
        for log in (False, True)
    ]
    with np.errstate(all="ignore"):
        assert len(write_figures(tmp_path, charts)) == 2
        page = render_page(Report("T", "e", "smoke", charts=charts))
    found = re.search(r'id="charts">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    assert "NaN" not in found[1]
    assert len(json.loads(found[1])) == len(charts)
