"""What docs/ says about the paper's claims is what evidence/ holds, all of it, and can be made again from there."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path

import pytest

from neoteny import experiments
from neoteny.cli import parser as cli
from neoteny.publish import docs
from neoteny.publish.__main__ import main
from neoteny.publish.docs import publish
from neoteny.publish.entries import ENTRIES, NEEDS, Picture
from neoteny.publish.keep import LARGEST_EVIDENCE, _refuse_paths, find_kept, keep, measure
from neoteny.publish.pages import find, write_overview, write_verdicts
from neoteny.publish.pictures import choose_pictures
from neoteny.publish.summary import Judged, Summary, _record, read_summary
from neoteny.report.claim import above, all_of, below
from neoteny.report.statistics import estimate
from neoteny.suite.store.documents import add_trailer, write_document
from neoteny.suite.store.results import Results

for package in ("matplotlib", "PIL", "pyarrow", "scipy"):
    pytest.importorskip(package, reason=f"{package} draws and reads what is published (the extra suite)")

ROOT = Path(__file__).parents[3]
EVIDENCE = ROOT / "evidence"
KEPT = sorted(path.parent.name for path in EVIDENCE.glob("*/summary.json"))
WHOLE = [
    (path.parent.name, path.name)
    for path in sorted(EVIDENCE.glob("*/summary*.json"))
    if (path.parent / "experiment.json").exists()
]
"""Folders whose tables are kept, each with the summaries of its views."""
SMALL = "eight-hundred-tasks"
"""Kept whole, two runs: what the tests of keeping take."""
QUICK = (SMALL, "hundred-units-change")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with one folder in results/, as a run on another machine left it, and nothing kept."""
    results = tmp_path / "results" / SMALL
    shutil.copytree(EVIDENCE / SMALL, results)
    (results / "summary.json").unlink()
    plan = json.loads((results / "plan.json").read_text())
    changed = {"command": "neoteny run /tmp/elsewhere.py --out /tmp/x", "folder": "/home/somebody"}
    write_document(results / "plan.json", {**plan, **changed})
    (results / "experiment.py").write_text("raise RuntimeError('the file as it was when the runs began')\n")
    for name in ("progress/0.json", "locks/0.lock", "checkpoints/0/state.pt", "report.html", ".create.lock"):
        (results / name).parent.mkdir(parents=True, exist_ok=True)
        (results / name).write_text("{}")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "results.md").write_text(
        "# Results\n\n<!-- claims: begin -->\nold\n<!-- claims: end -->\n\n"
        "## Eight hundred tasks of online permuted MNIST\n\n"
        f"Written by hand.\n<!-- verdicts {SMALL}: begin -->\n<!-- verdicts {SMALL}: end -->\n"
    )
    return tmp_path


def read_all(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def copy_docs(to: Path) -> None:
    """The pages, and what is kept, less the tables, which publishing must not need."""
    (to / "docs").mkdir()
    shutil.copy(ROOT / "docs" / "results.md", to / "docs")
    for name in KEPT:
        (to / "evidence" / name).mkdir(parents=True)
        for summary in (EVIDENCE / name).glob("summary*.json"):
            shutil.copy(summary, to / "evidence" / name)


def test_the_pages_are_what_the_kept_evidence_says(tmp_path: Path) -> None:
    copy_docs(tmp_path)
    publish(tmp_path, figures=False)
    for name in ("claims.md", "results.md"):
        written, found = ((one / "docs" / name).read_text() for one in (tmp_path, ROOT))
        assert written == found, f"docs/{name} is not what evidence/ says; run python -m neoteny.publish"
    assert publish(tmp_path, figures=False) == []


def test_every_claim_of_the_suite_has_a_verdict_or_says_what_it_would_take() -> None:
    assert set(NEEDS) == set(experiments.NAMES)
    page = (ROOT / "docs" / "claims.md").read_text()
    overview = (ROOT / "docs" / "results.md").read_text().partition("<!-- claims: end -->")[0]
    words = {"**holds**", "**does not hold**", "inconclusive", "not tested"}
    for name in experiments.NAMES:
        section = page.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        experiment = experiments.load(name)
        for claim in experiment.claims:
            (row,) = re.findall(rf"^\| `{re.escape(claim.name)}` .*\|$", section, re.M)
            _, stated, source, verdict, smaller, scale, measured, _ = re.split(r"(?<!\\)\|", row)
            assert stated.strip().endswith(claim.statement.replace("|", "\\|"))
            assert source.strip() == claim.source
            assert verdict.strip() in words
            if verdict.strip() == "not tested":
                assert NEEDS[name] in section
                assert smaller.strip() in {"no runs", *words}
            if smaller.strip() != "no runs":
                assert scale.strip()
                assert re.search(r"\d", measured), f"{name}, {claim.name}: a verdict without a number"
            shown = re.escape(claim.statement.replace("|", "\\|"))  # with what differs in the runs behind it
            assert re.search(rf"^\| {shown}( \(Here .*\))? \({re.escape(claim.source)}\) \|", overview, re.M)
        for remark in experiment.unchecked:
            assert remark.statement in section
            assert remark.reason.rstrip(".") in section


def test_entries_name_what_exists() -> None:
    entries = ENTRIES
    assert len({entry.name for entry in entries}) == len(entries)
    summaries = {(entry.folder, entry.summary): entry for entry in entries}
    assert len(summaries) == len(entries)
    assert {(path.parent.name, path.name) for path in EVIDENCE.glob("*/summary*.json")} <= set(summaries)
    files = [picture.file for entry in entries for picture in entry.pictures]
    assert len(set(files)) == len(files)
    for entry in entries:
        assert set(entry.judges) <= set(experiments.NAMES)
        assert entry.run in (*experiments.NAMES, *experiments.VARIANTS)
        first = next(one for one in entries if one.folder == entry.folder)
        assert (first.name, first.run) == (entry.folder, entry.run)


def test_what_is_kept_is_small_names_no_machine_and_is_drawn() -> None:
    assert measure(EVIDENCE) <= LARGEST_EVIDENCE
    figures = ROOT / "docs" / "figures"
    assert sum(path.stat().st_size for path in figures.iterdir()) <= docs.LARGEST_FIGURES
    for entry in ENTRIES:
        summary = find_kept(ROOT, entry)
        if summary is None:
            continue
        _refuse_paths(EVIDENCE / entry.folder, entry.folder)
        for picture in choose_pictures(entry, summary):
            assert (figures / f"{picture.file}.png").is_file()


def test_evidence_holds_data_alone() -> None:
    files = [path for path in EVIDENCE.rglob("*") if not path.is_dir() and "locks" not in path.parts]
    assert not [path for path in files if path.is_symlink() or path.suffix == ".py"]


@pytest.mark.parametrize(
    ("folder", "file"),
    [one if one[0] in QUICK else pytest.param(*one, marks=pytest.mark.slow) for one in WHOLE],
)
def test_kept_verdicts_are_those_that_the_command_prints(
    folder: str, file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (entry,) = [one for one in ENTRIES if (one.folder, one.summary) == (folder, file)]
    monkeypatch.chdir(ROOT)
    assert cli.main(["claims", f"evidence/{folder}", *entry.view_options]) == 0
    printed = capsys.readouterr().out
    summary = read_summary(EVIDENCE / folder / file)
    for one in summary.verdicts:
        assert f"[{one.outcome}] {one.statement} ({one.source})\n    {one.evidence}\n" in printed
    assert len(re.findall(r"^\[", printed, re.M)) == len(summary.verdicts)


def test_keeping_leaves_out_what_only_a_run_needs_and_names_no_path(root: Path) -> None:
    entry = next(entry for entry in ENTRIES if entry.name == SMALL)
    kept = keep(root, [entry])
    assert kept == root / "evidence" / SMALL
    assert {path.name for path in kept.iterdir()} == {
        "experiment.json",
        "parts",
        "plan.json",
        "summary.json",
    }
    plan = json.loads((kept / "plan.json").read_text())
    assert plan["command"] == f"neoteny run eight-hundred-tasks --scale paper --out results/{SMALL}"
    assert plan["folder"] == ""
    assert Results.open(kept).frame().equals(Results.open(root / "results" / SMALL).frame())
    assert "elsewhere" not in (kept / "summary.json").read_text()
    before = read_all(kept)
    shutil.rmtree(root / "results")
    keep(root, [entry])  # from what is kept
    assert read_all(kept) == before


def test_publishing_twice_changes_nothing_and_leaves_prose_alone(root: Path) -> None:
    entries = [entry for entry in ENTRIES if entry.name == SMALL]
    keep(root, entries)
    changed = publish(root, entries)
    assert {path.name for path in changed} == {
        "claims.md",
        "results.md",
        "eight-hundred-tasks-accuracy.png",
        "eight-hundred-tasks-networks.png",
    }
    before = read_all(root / "docs")
    page = before["results.md"].decode()
    assert "\nWritten by hand.\n" in page
    assert "\nold\n" not in page
    assert "fewer than 3 runs" in page.partition("verdicts")[2]
    assert publish(root, entries) == []
    assert read_all(root / "docs") == before


def test_of_a_large_folder_the_summary_says_the_same(root: Path) -> None:
    entries = [entry for entry in ENTRIES if entry.name == SMALL]
    keep(root, entries)
    publish(root, entries)
    before = read_all(root / "docs")
    kept = keep(root, entries, largest_whole=1000)
    assert [path.name for path in kept.iterdir()] == ["summary.json"]
    assert publish(root, entries) == []
    assert read_all(root / "docs") == before


def test_a_path_of_this_machine_is_not_published(root: Path) -> None:
    entry = next(entry for entry in ENTRIES if entry.name == SMALL)
    path = next((root / "results" / SMALL / "parts").glob("*.json"))
    write_document(path, {**json.loads(path.read_text()), "machine": "/home/somebody"})
    with pytest.raises(ValueError, match=rf"{path.name} of .* names a path .*'/home/somebody'"):
        keep(root, [entry])
    assert not list((root / "evidence").iterdir())


def test_figures_above_the_limit_are_refused_before_anything_is_written(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [entry for entry in ENTRIES if entry.name == SMALL]
    keep(root, entries)
    before = read_all(root / "docs")
    monkeypatch.setattr(docs, "LARGEST_FIGURES", 1000)
    with pytest.raises(ValueError, match="of at most 1,000; nothing was written"):
        publish(root, entries)
    assert read_all(root / "docs") == before


def test_mistakes_name_what_was_meant(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--keep", "hundred-unit"], root) == 1
    assert "Did you mean 'hundred-units'?" in capsys.readouterr().err
    assert main(["--keep", "hundred-units"], root) == 1
    assert "neoteny run hundred-units" in capsys.readouterr().err
    entries = [entry for entry in ENTRIES if entry.name == SMALL]
    keep(root, entries)
    wrong = dataclasses.replace(entries[0], judges=("mnist-method",))
    with pytest.raises(ValueError, match="Did you mean 'mnist-methods'"):
        publish(root, [wrong])
    picture = Picture("x", ("Online acuracy",))
    with pytest.raises(ValueError, match="Did you mean 'Online accuracy'"):
        publish(root, [dataclasses.replace(entries[0], pictures=(picture,))])
    page = root / "docs" / "results.md"
    page.write_text(page.read_text().replace("<!-- claims: end -->", ""))
    with pytest.raises(ValueError, match="must have the block"):
        publish(root, entries)
    marks = [f"<!-- {kind}: {end} -->" for kind in ("claims", "verdicts eight") for end in ("begin", "end")]
    page.write_text("\n".join(marks))
    with pytest.raises(ValueError, match="of which nothing is kept"):
        publish(root, entries)


def test_the_larger_scale_counts_and_other_verdicts_stand_beside_it() -> None:
    """Two folders on one claim: in the order of the entries; one that cannot speak to a claim is passed over."""
    claim = experiments.load("mnist-methods").claims[0]
    judges = ("mnist-methods",)
    mine = [
        dataclasses.replace(ENTRIES[0], name=name, folder=name, judges=judges, scale=name, decides=judges)
        for name in "abc"
    ]
    judged = Judged(claim.name, claim.statement, claim.source, "holds", "x: 1 [0.5, 2] (8 runs)", True)
    verdicts = {
        "a": dataclasses.replace(judged, outcome="inconclusive", tested=False),
        "b": judged,
        "c": dataclasses.replace(judged, name=f"mnist-methods/{claim.name}", outcome="does not hold"),
    }
    empty = Summary("", "", "", 0, 0, (), ())
    summaries = {name: dataclasses.replace(empty, verdicts=(one,)) for name, one in verdicts.items()}
    findings = find(mine, summaries)
    assert findings.verdict("mnist-methods", claim) == "holds"
    assert [line.entry.name for line in findings.lines["mnist-methods", claim.name]] == ["b", "c"]
    (row,) = [line for line in write_overview(findings, []).splitlines() if claim.statement in line]
    assert row.endswith("| **holds** | no runs | b; does not hold at c |")
    assert findings.own == {}
    verdicts["b"] = dataclasses.replace(judged, outcome="inconclusive", partly=True)
    findings = find(mine, summaries | {"b": dataclasses.replace(empty, verdicts=(verdicts["b"],))})
    assert findings.verdict("mnist-methods", claim) == "does not hold"
    assert [line.entry.name for line in findings.lines["mnist-methods", claim.name]] == ["c", "b"]
    mine[2] = dataclasses.replace(mine[2], folder="b")  # a view of the folder that has judged it whole
    findings = find(mine, summaries)
    assert [line.entry.name for line in findings.lines["mnist-methods", claim.name]] == ["b"]
    assert [claim.statement in write_verdicts(findings, name) for name in "abc"] == [False, True, False]


def test_a_smaller_scale_has_a_column_of_its_own_and_does_not_count() -> None:
    claim = experiments.load("mnist-methods").claims[0]
    entry = dataclasses.replace(ENTRIES[0], name="narrow", folder="narrow", judges=("mnist-methods",), scale="narrow")
    judged = Judged(claim.name, claim.statement, claim.source, "does not hold", "x: -1 [-2, -0.5] (8 runs)", True)
    again = dataclasses.replace(judged, name=f"mnist-methods/{claim.name}@retuned", outcome="holds")
    summary = Summary("", "", "", 0, 0, (judged, again), ())
    for decides, verdict, smaller in (
        ((), "not tested", "does not hold"),
        (("mnist-methods",), "does not hold", "no runs"),
        ((f"mnist-methods/{claim.name}",), "does not hold", "no runs"),
        (("mnist-methods/another",), "not tested", "does not hold"),
    ):
        findings = find([dataclasses.replace(entry, decides=decides)], {"narrow": summary})
        assert findings.verdict("mnist-methods", claim) == verdict
        assert findings.smaller("mnist-methods", claim) == smaller
        assert [line.judged.tag for line in findings.lines["mnist-methods", claim.name]] == ["", "retuned"]
        text = write_overview(findings, [])
        assert (
            "| `mnist-methods` on `narrow` | L2 and shrink and perturb with the paper's best strength, 1e-4 | 0 |"
            in text
        )
    guarded = dataclasses.replace(judged, outcome="inconclusive", at_this_scale="does not hold")
    findings = find(
        [dataclasses.replace(entry, decides=("mnist-methods",))],
        {"narrow": dataclasses.replace(summary, verdicts=(guarded,))},
    )
    assert findings.verdict("mnist-methods", claim) == "not tested"
    assert findings.smaller("mnist-methods", claim) == "does not hold"


def test_the_papers_network_outranks_a_narrower_one() -> None:
    names = [entry.name for entry in ENTRIES]
    assert names.index("two-thousand-units") < names.index("hundred-units")
    assert all(entry.decides == () for entry in ENTRIES if "hundred-units" in entry.name or "laptop" in entry.name)


def test_what_a_verdict_lacks_runs_for_is_said() -> None:
    """All of it: not tested. Some of it: in part, unless the rest decides."""
    claim = experiments.load("mnist-methods").claims[0]
    there, absent = above(estimate([0.9, 1.0, 1.1])), above(estimate([]))
    undecided, against = above(estimate([-1.0, 0.0, 1.0])), below(estimate([0.9, 1.0, 1.1]))
    for verdicts, tested, partly in (
        ([absent], False, False),
        ([absent, absent], False, False),
        ([], False, False),
        ([undecided], True, False),
        ([there, absent], True, True),
        ([there, against, absent], True, False),
        ([there], True, False),
    ):
        judged = _record(claim, all_of(verdicts))
        assert (judged.tested, judged.partly) == (tested, partly), judged.evidence


def test_views_of_a_folder_stand_beside_each_other_and_unfinished_runs_are_kept(root: Path) -> None:
    results = root / "results" / SMALL
    (results / "unfinished").mkdir()
    (described,) = [path for path in (results / "parts").glob("*.json") if '"CBP' in path.read_text()]
    table = described.with_suffix(".parquet")
    (results / "unfinished" / table.name).write_bytes(add_trailer(table.stem, table.read_bytes()))
    table.unlink()
    described.rename(results / "progress" / described.name)
    (finished,) = [entry for entry in ENTRIES if entry.name == SMALL]
    so_far = dataclasses.replace(finished, name=f"{SMALL}-so-far", so_far=True)
    part = dataclasses.replace(finished, name=f"{SMALL}-20", tasks=20)
    views = [finished, so_far, part]
    kept = keep(root, views)
    folders = {path.name for path in kept.iterdir() if path.is_dir()}
    assert folders == {"parts", "progress", "unfinished"}
    assert {path.name for path in kept.glob("summary*")} == {view.summary for view in views}
    seen = [summary for view in views if (summary := find_kept(root, view)) is not None]
    assert [len(summary.charts[0].series) for summary in seen] == [1, 2, 2]
    assert [judged.tested for summary in seen for judged in summary.verdicts] == [False, True, True]
    lengths = [max(len(one.x) for one in summary.charts[0].series) for summary in seen]
    assert lengths[0] == lengths[1] > lengths[2] == 20
    before = read_all(kept)
    shutil.rmtree(root / "results")
    keep(root, views)
    assert read_all(kept) == before
