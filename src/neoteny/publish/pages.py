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
NO_RUNS = "no runs"
COUNTED = {
    Outcome.HOLDS: ("holds", "hold"),
    Outcome.FAILS: ("does not hold", "do not hold"),
    Outcome.INCONCLUSIVE: ("is inconclusive", "are inconclusive"),
    NOT_TESTED: ("is not tested", "are not tested"),
}
HEADING = [
    "| claim | paper | verdict | at a smaller scale | scale | what was measured |",
    "|---|---|---|---|---|---|",
]
SETTINGS_OF = {
    "mnist-methods": "L2 and shrink and perturb with the paper's best strength, 1e-4",
    "mnist-methods@retuned": "L2 and shrink and perturb with the strength that is best for these networks, 1e-3",
    "imagenet-methods": "one setting of each method, backpropagation at step size 0.01",
    "imagenet-methods@best-of-five": "backpropagation at the best of five step sizes, the others at one setting each",
}
"""What the tags of an experiment's claims stand for, and what claims without a tag do."""
_NUMBER = r"-?[\d.]+(?:e[-+]?\d+)?"
_ESTIMATE = re.compile(rf"({_NUMBER}) \[({_NUMBER}), ({_NUMBER})\]")
_RUNS = re.compile(r" \((\d+) runs?\)")
_EXPECTED = re.compile(r", expected (above|below) 0(?![.\d])")


@dataclass(frozen=True)
class Line:
    """One entry's word on one claim of the suite; `decides` where the paper's sentence can be judged at its scale."""

    entry: Entry
    judged: Judged
    decides: bool = False


@dataclass(frozen=True)
class Findings:
    """All claims of the suite with what was found on each: lines at the scale that decides first."""

    suite: dict[str, Experiment]
    lines: dict[tuple[str, str], list[Line]]
    own: dict[str, list[Line]]
    """Claims of folders that are none of the suite's, by name."""
    entries: tuple[Entry, ...]
    """In the order of their scales."""

    def verdict(self, experiment: str, claim: Claim) -> str:
        """The outcome that counts: that of the first line whose scale decides."""
        lines = self.lines[experiment, claim.name]
        return lines[0].judged.outcome if lines and lines[0].decides else NOT_TESTED

    def smaller(self, experiment: str, claim: Claim) -> str:
        """What the largest of the smaller scales says, or that there are no runs."""
        said = [line.judged.said for line in self.lines[experiment, claim.name] if not line.decides]
        return said[0] if said else NO_RUNS

    def count(self, names: Iterable[str]) -> Counter[str]:
        """How many claims of some experiments have which outcome."""
        return Counter(self.verdict(name, claim) for name in names for claim in self.suite[name].claims)

    def count_smaller(self, names: Iterable[str]) -> Counter[str]:
        """Of the claims that count as not tested, how many have which outcome at a smaller scale."""
        open_claims = [(name, claim) for name in names for claim in self.suite[name].claims]
        return Counter(self.smaller(*one) for one in open_claims if self.verdict(*one) == NOT_TESTED)


def find(entries: Iterable[Entry], summaries: Mapping[str, Summary]) -> Findings:
    """Bring each entry's verdicts to the claims of the suite that they are about: by name, then by source.

    The order is that of the entries, but entries whose scale decides come first, and who leaves a claim undecided for
    want of runs comes after the others. Of views of one folder those after the first that could judge all of a claim
    are left out: they show fewer of the same runs.

    Raises:
        EvidenceError: an entry judges an experiment that the suite does not have.
    """
    suite = {name: experiments.load(name) for name in experiments.NAMES}
    lines: dict[tuple[str, str], list[Line]] = {(n, c.name): [] for n, one in suite.items() for c in one.claims}
    own: dict[str, list[Line]] = {}
    entries = tuple(entries)
    for entry in entries:
        for name in entry.judges:
            if name not in suite:
                raise EvidenceError(f"{entry.name} judges {name!r}, no experiment.{nearest(name, list(suite))}")
        for judged in summaries[entry.name].verdicts if entry.name in summaries else ():
            homes = [
                (name, claim)
                for name in entry.judges
                for claim in suite[name].claims
                if judged.base in (claim.name, f"{name}/{claim.name}")
            ]
            if len(homes) > 1:
                homes = [(name, claim) for name, claim in homes if claim.source == judged.source]
            if not judged.tested:
                continue
            found = lines[homes[0][0], homes[0][1].name] if homes else own.setdefault(judged.name, [])
            before = [line for line in found if line.entry.folder == entry.folder and line.judged.tag == judged.tag]
            if all(line.judged.partly for line in before):
                wanted = {homes[0][0], f"{homes[0][0]}/{homes[0][1].name}"} if homes else set()
                decides = not wanted.isdisjoint(entry.decides) and not judged.at_this_scale
                found.append(Line(entry, judged, decides))
    for found in lines.values():
        found.sort(key=lambda line: (not line.decides, line.judged.partly, bool(line.judged.tag)))
    return Findings(suite, lines, own, entries)


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
        "| not tested | there are no runs at a scale at which the paper's sentence can be judged |",
        "",
        "Where one of several comparisons decides a claim, their number is corrected for (Holm); shares have exact "
        "intervals. Settings are chosen by other runs than those that are compared.",
        "",
        "Where several folders test a claim, each has a line, the largest scale first; a folder without all the runs a "
        "claim compares comes after those that have them. Only verdicts at a scale at which the paper's sentence can "
        "be judged count. What was found at smaller scales (fewer units, tasks, classes or steps) has a column of its "
        "own.",
        "",
        f"Of {_total(findings)} claims {say_counts(findings.count(findings.suite))}. {_say_smaller(findings)}",
    ]
    for name, experiment in findings.suite.items():
        counts = findings.count([name])
        pieces += ["", f"## {name}", "", f"{experiment.title}: {say_counts(counts)}.", ""]
        if counts[NOT_TESTED]:
            pieces += [f"What is not tested would take {NEEDS[name]}", ""]
        pieces += HEADING
        for claim in experiment.claims:
            pieces += _write_rows(claim, findings.lines[name, claim.name], headings)
        if experiment.unchecked:
            pieces += ["", "Not checked:", ""]
        pieces += [f"- {one.statement} ({one.source}) *{one.reason.rstrip('.')}.*" for one in experiment.unchecked]
    if findings.own:
        pieces += ["", "## Claims of single folders", "", "| claim | paper | verdict | scale | what was measured |"]
        pieces += ["|---|---|---|---|---|"]
    for lines in findings.own.values():
        for line in lines:
            named = f"`{line.judged.name}` {line.judged.statement}"
            pieces.append(_row(named, line.judged.source, [_strong(line.judged.said)], line, headings))
    return "\n".join(pieces) + "\n"


def _write_rows(claim: Claim, lines: list[Line], headings: set[str]) -> list[str]:
    named = f"`{claim.name}` {claim.statement}"
    if not lines:
        return [f"| {_cell(named)} | {_cell(claim.source)} | {NOT_TESTED} | {NO_RUNS} | | |"]
    rows = []
    for nth, line in enumerate(lines):
        again = "" if line.judged.statement == claim.statement else f"(as: {line.judged.statement})"
        said = _strong(line.judged.said)
        verdicts = [said, ""] if line.decides else [NOT_TESTED if nth == 0 else "", said]
        first = (named, claim.source) if nth == 0 else ("", "")
        rows.append(_row(*first, verdicts, line, headings, again))
    return rows


def _row(claim: str, source: str, verdicts: list[str], line: Line, headings: set[str], again: str = "") -> str:
    numbers = _cell(shorten(line.judged.evidence)).replace("; ", "<br>")
    measured = "<br>".join(filter(None, [_cell(again), numbers]))
    scale = _link(line.entry, headings, "results.md")
    return f"| {_cell(claim)} | {_cell(source)} | {' | '.join(verdicts)} | {scale} | {measured} |"


def _say_smaller(findings: Findings) -> str:
    """What smaller scales say of the claims that are not tested, in a sentence."""
    counts = findings.count_smaller(findings.suite)
    without = f"; {counts[NO_RUNS]} have no runs at all" if counts[NO_RUNS] else ""
    return f"Of those not tested, at a smaller scale {say_counts(counts)}{without}."


def write_overview(findings: Findings, sections: Iterable[str]) -> str:
    """The table at the top of `docs/results.md`: counts, then for each experiment its claims with their verdicts."""
    headings = set(sections)
    unchecked = sum(len(one.unchecked) for one in findings.suite.values())
    pieces = [
        f"Of the {_total(findings)} claims that the suite makes of the paper's text and figures, "
        f"{say_counts(findings.count(findings.suite))}. {_say_smaller(findings)} [Every claim](claims.md) has the "
        f"numbers behind every verdict, and {unchecked} remarks that no results could test.",
        "",
        "A verdict counts at a scale at which the paper's sentence can be judged. What smaller scales say stands "
        "beside it and does not count.",
        "",
        "| experiment | holds | does not hold | inconclusive | not tested | of these, at a smaller scale: holds | does "
        "not hold | inconclusive | no runs |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, experiment in findings.suite.items():
        counts, smaller = findings.count([name]), findings.count_smaller([name])
        numbers = [counts[outcome] for outcome in COUNTED]
        numbers += [smaller[outcome] for outcome in (*Outcome, NO_RUNS)]
        cells = " | ".join(map(str, numbers))
        pieces.append(f"| [`{name}`](claims.md#{name}): {_cell(experiment.title)} | {cells} |")
    pieces += ["", *_write_scales(findings), "", *_write_settings(findings)]
    for name, experiment in findings.suite.items():
        pieces += ["", f"<details><summary><code>{name}</code>: {experiment.title}</summary>", ""]
        pieces += ["| claim | verdict | at a smaller scale | tested at |", "|---|---|---|---|"]
        for claim in experiment.claims:
            lines = findings.lines[name, claim.name]
            where = _link(lines[0].entry, headings, "") if lines else f"[what it would take](claims.md#{name})"
            said = [lines[0].judged.said] if lines else []
            others = [one for one in lines[1:] if one.judged.said not in said and not one.judged.partly]
            beside = "".join(f"; {_say_beside(one)} {_link(one.entry, headings, '')}" for one in others)
            stated = _cell(f"{lines[0].judged.statement if lines else claim.statement} ({claim.source})")
            verdict = _strong(findings.verdict(name, claim))
            pieces.append(f"| {stated} | {verdict} | {_strong(findings.smaller(name, claim))} | {where}{beside} |")
        pieces += ["", "</details>"]
    return "\n".join(pieces)


def _say_beside(line: Line) -> str:
    return f"{line.judged.said}{f' ({line.judged.tag})' if line.judged.tag else ''} at"


def _write_scales(findings: Findings) -> list[str]:
    """The verdicts by the scale of the runs behind them, the largest first: of each claim that of its first line."""
    counts: dict[tuple[str, bool], Counter[str]] = {}
    for lines in findings.lines.values():
        if lines:
            counts.setdefault((lines[0].entry.name, lines[0].decides), Counter())[lines[0].judged.said] += 1
    places = {entry.name: number for number, entry in enumerate(findings.entries)}
    rows = [
        f"| `{name}`: {findings.entries[places[name]].scale} | {'yes' if decides else 'no'} | "
        f"{' | '.join(str(found[outcome]) for outcome in Outcome)} |"
        for (name, decides), found in sorted(counts.items(), key=lambda one: (places[one[0][0]], not one[0][1]))
    ]
    heading = ["| scale | counted | holds | does not hold | inconclusive |", "|---|---|---|---|---|"]
    return ["The verdicts by scale, each claim at the first that judges it:", "", *heading, *rows]


def _write_settings(findings: Findings) -> list[str]:
    """How often claims hold with each of several settings, of the folders that judge claims with more than one."""
    counts: dict[tuple[str, str, str], Counter[str]] = {}
    for (name, _), lines in findings.lines.items():
        for line in lines:
            counts.setdefault((name, line.entry.name, line.judged.tag), Counter())[line.judged.said] += 1
    tagged = {(name, folder) for name, folder, tag in counts if tag}
    rows = [
        f"| `{name}` on `{folder}` | {SETTINGS_OF[f'{name}@{tag}' if tag else name]} | "
        f"{' | '.join(str(found[outcome]) for outcome in Outcome)} |"
        for (name, folder, tag), found in counts.items()
        if (name, folder) in tagged
    ]
    if not rows:
        return []
    heading = ["| claims of | settings | holds | does not hold | inconclusive |", "|---|---|---|---|---|"]
    return ["Two settings of the same runs, both published:", "", *heading, *rows]


def write_verdicts(findings: Findings, name: str) -> str:
    """The verdicts of one entry, for its section; of a further view of a folder those that the views before it lack."""
    lines = [line for found in (*findings.lines.values(), *findings.own.values()) for line in found]
    rows = [
        f"| {_cell(one.statement)} ({_cell(one.source)}) | {_strong(one.said)} | "
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
