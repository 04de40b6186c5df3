"""The words of `docs/`: every claim of the suite with its verdicts, as Markdown.

From the summaries that are kept (`keeping`) and the suite's own list of claims to `docs/claims.md` (everything) and to
the blocks of `docs/results.md` that stand between marks (`publish` puts them there).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from neoteny import experiments
from neoteny.experiments import Experiment
from neoteny.publish.entries import NEEDS, Entry
from neoteny.publish.keep import EvidenceError
from neoteny.publish.summary import Judged, Summary
from neoteny.report.claim import Claim, Outcome
from neoteny.report.statistics import say_count
from neoteny.text import nearest

NOT_TESTED = "not tested"
COUNTED = {
    Outcome.HOLDS: ("holds", "hold"),
    Outcome.FAILS: ("does not hold", "do not hold"),
    Outcome.INCONCLUSIVE: ("is inconclusive", "are inconclusive"),
    NOT_TESTED: ("is not tested", "are not tested"),
}
_NUMBER = r"-?[\d.]+(?:e[-+]?\d+)?"
_ESTIMATE = re.compile(rf"({_NUMBER}) \[({_NUMBER}), ({_NUMBER})\]")
_RUNS = re.compile(r" \((\d+) runs?\)")
_EXPECTED = re.compile(r", expected (above|below) 0(?![.\d])")


@dataclass(frozen=True)
class Line:
    """One entry's word on one claim of the suite."""

    entry: Entry
    judged: Judged


@dataclass(frozen=True)
class Findings:
    """All claims of the suite with what was found on each, the line that counts first."""

    suite: dict[str, Experiment]
    lines: dict[tuple[str, str], list[Line]]
    own: dict[str, list[Line]]
    """Claims of folders that are none of the suite's, by name."""

    def verdict(self, experiment: str, claim: Claim) -> str:
        """The outcome that counts: that of the first line."""
        lines = self.lines[experiment, claim.name]
        return lines[0].judged.outcome if lines else NOT_TESTED

    def count(self, names: Iterable[str]) -> Counter[str]:
        """How many claims of some experiments have which outcome."""
        return Counter(self.verdict(name, claim) for name in names for claim in self.suite[name].claims)


def find(entries: Iterable[Entry], summaries: Mapping[str, Summary]) -> Findings:
    """Bring each entry's verdicts to the claims of the suite that they are about: by name, then by source.

    The order is that of the entries, but who leaves a claim undecided for want of runs comes after all others. Of views
    of one folder those after the first that could judge all of a claim are left out: they show fewer of the same runs.

    Raises:
        EvidenceError: an entry judges an experiment that the suite does not have.
    """
    suite = {name: experiments.load(name) for name in experiments.NAMES}
    lines: dict[tuple[str, str], list[Line]] = {(n, c.name): [] for n, one in suite.items() for c in one.claims}
    own: dict[str, list[Line]] = {}
    for entry in entries:
        for name in entry.judges:
            if name not in suite:
                raise EvidenceError(f"{entry.name} judges {name!r}, no experiment.{nearest(name, list(suite))}")
        for judged in summaries[entry.name].verdicts if entry.name in summaries else ():
            homes = [
                (name, claim)
                for name in entry.judges
                for claim in suite[name].claims
                if judged.name in (claim.name, f"{name}/{claim.name}")
            ]
            if len(homes) > 1:
                homes = [(name, claim) for name, claim in homes if claim.source == judged.source]
            if not judged.tested:
                continue
            found = lines[homes[0][0], homes[0][1].name] if homes else own.setdefault(judged.name, [])
            before = [line for line in found if line.entry.folder == entry.folder]
            if all(line.judged.partly for line in before):
                found.append(Line(entry, judged))
    for found in lines.values():
        found.sort(key=lambda line: line.judged.partly)
    return Findings(suite, lines, own)


def write_claims(findings: Findings, sections: Iterable[str]) -> str:
    """`docs/claims.md`: a section for each experiment, then the claims of single folders."""
    headings = set(sections)
    pieces = [
        "# Every claim, and what was measured",
        "",
        "Written by `python -m neoteny.publish` from what `evidence/` keeps. The verdicts are those of `neoteny claims "
        "FOLDER`.",
        "",
        "| verdict | the 95% interval over runs (Student's t, paired over runs that saw the same stream) |",
        "|---|---|",
        "| holds | lies wholly on the claimed side |",
        "| does not hold | lies wholly on the other side |",
        "| inconclusive | reaches to both sides, or there are too few runs |",
        "| not tested | there are no runs that could test it |",
        "",
        "Where several folders test a claim, each has a line. The first line counts. It is that of the largest scale, "
        "except that a folder without all the runs a claim compares comes after those that have them.",
        "",
        f"Of {_total(findings)} claims {say_counts(findings.count(findings.suite))}.",
    ]
    for name, experiment in findings.suite.items():
        pieces += ["", f"## {name}", "", f"{experiment.title}: {say_counts(findings.count([name]))}.", ""]
        pieces += ["| claim | paper | verdict | scale | what was measured |", "|---|---|---|---|---|"]
        for claim in experiment.claims:
            pieces += _write_rows(claim, findings.lines[name, claim.name], NEEDS[name], headings)
        if experiment.unchecked:
            pieces += ["", "Not checked:", ""]
        pieces += [f"- {one.statement} ({one.source}) *{one.reason.rstrip('.')}.*" for one in experiment.unchecked]
    if findings.own:
        pieces += ["", "## Claims of single folders", "", "| claim | paper | verdict | scale | what was measured |"]
        pieces += ["|---|---|---|---|---|"]
    for lines in findings.own.values():
        for line in lines:
            pieces.append(_row(f"`{line.judged.name}` {line.judged.statement}", line.judged.source, line, headings))
    return "\n".join(pieces) + "\n"


def _write_rows(claim: Claim, lines: list[Line], needs: str, headings: set[str]) -> list[str]:
    named = f"`{claim.name}` {claim.statement}"
    if not lines:
        return [f"| {_cell(named)} | {_cell(claim.source)} | {NOT_TESTED} | | It would take {_cell(needs)} |"]
    rows = []
    for nth, line in enumerate(lines):
        again = "" if line.judged.statement == claim.statement else f"(as: {line.judged.statement})"
        rest = f"For the rest it would take {needs}" if nth == 0 and line.judged.partly else ""
        rows.append(_row(named if nth == 0 else "", claim.source if nth == 0 else "", line, headings, again, rest))
    return rows


def _row(claim: str, source: str, line: Line, headings: set[str], again: str = "", rest: str = "") -> str:
    numbers = _cell(shorten(line.judged.evidence)).replace("; ", "<br>")
    measured = "<br>".join(filter(None, [_cell(again), numbers, _cell(rest)]))
    scale = _link(line.entry, headings, "results.md")
    return f"| {_cell(claim)} | {_cell(source)} | {_strong(line.judged.outcome)} | {scale} | {measured} |"


def write_overview(findings: Findings, sections: Iterable[str]) -> str:
    """The table at the top of `docs/results.md`: counts, then for each experiment its claims with their verdicts."""
    headings = set(sections)
    unchecked = sum(len(one.unchecked) for one in findings.suite.values())
    pieces = [
        f"Of the {_total(findings)} claims that the suite makes of the paper's text and figures, "
        f"{say_counts(findings.count(findings.suite))}. [Every claim](claims.md) has the numbers behind every verdict, "
        f"and {unchecked} remarks that no results could test.",
        "",
        "| experiment | holds | does not hold | inconclusive | not tested |",
        "|---|---|---|---|---|",
    ]
    for name, experiment in findings.suite.items():
        counts = findings.count([name])
        numbers = " | ".join(str(counts[outcome]) for outcome in COUNTED)
        pieces.append(f"| [`{name}`](claims.md#{name}): {_cell(experiment.title)} | {numbers} |")
    for name, experiment in findings.suite.items():
        pieces += ["", f"<details><summary><code>{name}</code>: {experiment.title}</summary>", ""]
        pieces += ["| claim | verdict | tested at |", "|---|---|---|"]
        for claim in experiment.claims:
            lines = findings.lines[name, claim.name]
            verdict = findings.verdict(name, claim)
            where = _link(lines[0].entry, headings, "") if lines else f"[what it would take](claims.md#{name})"
            others = [one for one in lines[1:] if one.judged.outcome != verdict and not one.judged.partly]
            beside = "".join(f"; {one.judged.outcome} at {_link(one.entry, headings, '')}" for one in others)
            stated = _cell(f"{lines[0].judged.statement if lines else claim.statement} ({claim.source})")
            pieces.append(f"| {stated} | {_strong(verdict)} | {where}{beside} |")
        pieces += ["", "</details>"]
    return "\n".join(pieces)


def write_verdicts(findings: Findings, name: str) -> str:
    """The verdicts of one entry, for its section; of a further view of a folder those that the views before it lack."""
    lines = [line for found in (*findings.lines.values(), *findings.own.values()) for line in found]
    rows = [
        f"| {_cell(one.statement)} ({_cell(one.source)}) | {_strong(one.outcome)} | "
        f"{_cell(shorten(one.evidence)).replace('; ', '<br>')} |"
        for one in (line.judged for line in lines if line.entry.name == name)
    ]
    return "\n".join(["| claim | verdict | what was measured |", "|---|---|---|", *rows])


def shorten(evidence: str) -> str:
    """The numbers of a verdict for a table: three digits, and what all of its pieces have in common once.

    Example:
        >>> shorten("BP: 0.12345 [0.1, 0.15] (8 runs), expected above 0; L2: 0.2 [0.1, 0.3] (8 runs), expected above 0")
        'BP: 0.123 [0.1, 0.15]; L2: 0.2 [0.1, 0.3]; expected above 0, 8 runs'
        >>> shorten("BP: 0.2 [0.1, 0.3] (8 runs), expected above 0.01; L2: 0.2 [0.1, 0.3] (8 runs), expected above 0")
        'BP: 0.2 [0.1, 0.3], expected above 0.01; L2: 0.2 [0.1, 0.3], expected above 0; 8 runs'
    """
    pieces = evidence.replace("; the interval crosses that bound", " (undecided)").split("; ")
    pieces = [_ESTIMATE.sub(lambda found: _round(found), piece) for piece in pieces]
    common = []
    found = [_EXPECTED.search(piece) for piece in pieces if ", expected" in piece]
    sides = {one[1] if one else "" for one in found}
    if len(sides) == 1 and "" not in sides:
        pieces = [_EXPECTED.sub("", piece) for piece in pieces]
        common.append(f"expected {sides.pop()} 0")
    counts = set(_RUNS.findall(evidence))
    if len(counts) == 1:
        pieces = [_RUNS.sub("", piece) for piece in pieces]
        (count,) = counts
        common.append(say_count(int(count), "run"))
    return "; ".join([*pieces, ", ".join(common)] if common else pieces)


def _round(found: re.Match[str]) -> str:
    mean, low, high = (f"{float(one):.3g}" for one in found.groups())
    return f"{mean} [{low}, {high}]"


def say_counts(counts: Mapping[str, int]) -> str:
    """Counts in words: "8 hold, 1 does not hold"; outcomes that none has are left out.

    Example:
        >>> say_counts({"holds": 8, "does not hold": 1})
        '8 hold, 1 does not hold'
    """
    said = [f"{counts[name]} {words[counts[name] != 1]}" for name, words in COUNTED.items() if counts.get(name)]
    return ", ".join(said) or "nothing is claimed"


def make_anchor(heading: str) -> str:
    """A heading as the address that GitHub gives it.

    Example:
        >>> make_anchor("Permuted MNIST: seven methods, 800 tasks")
        'permuted-mnist-seven-methods-800-tasks'
    """
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _link(entry: Entry, headings: set[str], page: str) -> str:
    words = _cell(entry.scale)
    return f"[{words}]({page}#{make_anchor(entry.section)})" if entry.section in headings else words


def _strong(outcome: str) -> str:
    return f"**{outcome}**" if outcome in (Outcome.HOLDS, Outcome.FAILS) else outcome


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _total(findings: Findings) -> int:
    return sum(len(one.claims) for one in findings.suite.values())
