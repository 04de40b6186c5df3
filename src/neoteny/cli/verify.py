"""`neoteny verify`: a sample of a folder's runs is made again and compared with what is stored."""

from __future__ import annotations

from pathlib import Path

from neoteny.cli.show import say
from neoteny.cli.trust import find_experiment
from neoteny.suite.environment import choose_device, open_problems
from neoteny.suite.session import Job
from neoteny.suite.store.errors import StoreError
from neoteny.suite.store.results import Results
from neoteny.suite.verification import Found, sample_parts, verify
from neoteny.text import say_count


def command_verify(
    folder: Path,
    file: Path | None,
    trust: bool,
    runs: int,
    tasks: int,
    tolerance: float,
    seed: int,
    device: str,
    data: Path | None,
) -> int:
    """Print what is the same and what differs; the exit status is 1 where something differs."""
    results = Results.open(folder)
    experiment = find_experiment(results, file, trust)
    if experiment is None:
        raise StoreError(
            f"{folder} is of an experiment file of its own, which is not run unless you say so: give it, `neoteny "
            f"verify {folder} FILE.py`, or if you trust the folder run its copy with --trust."
        )
    sweep = experiment.make_sweep(results.about["scale"])
    parts = sample_parts(results, runs, seed)
    job = Job(results, open_problems(sweep, data), choose_device(device, sweep), "", 0.0)
    say(_say_commits([part for part, _ in parts]))
    found: list[Found] = []
    for one in verify(job, sweep, parts, tasks, tolerance):
        if one.why and (not found or one.why != found[-1].why):
            say(f"not where it was made: {one.why}")
        say(_describe(one, tolerance))
        found.append(one)
    wrong = [one for one in found if not one.same]
    counts = say_count(sum(one.runs for one in found), "run")
    say(f"{counts} in {say_count(len(found), 'stack')}: {_conclude(found, wrong)}.")
    return 1 if wrong else 0


def _conclude(found: list[Found], wrong: list[Found]) -> str:
    if wrong:
        return f"{len(wrong)} of the stacks {'differs' if len(wrong) == 1 else 'differ'}"
    compared = [one for one in found if one.outcome == "same"]
    if not compared:
        return "nothing could be compared"
    few = "" if len(compared) == len(found) else f" in the {len(compared)} that could be compared"
    how = "bit for bit" if all(one.exact for one in compared) else "within the tolerance"
    return f"all the same, {how}{few}"


def _describe(one: Found, tolerance: float) -> str:
    how = "bit for bit" if one.exact else f"within {tolerance:g} of the largest value"
    lines = [
        f"[{one.outcome}] {one.name}: {say_count(one.runs, 'run')}, {say_count(one.compared, 'number')}, {how}",
        f"    initial weights: {one.initial}",
        *(f"    {line}" for line in one.differing),
    ]
    return "\n".join(lines)


def _say_commits(parts: list[dict[str, object]]) -> str:
    commits = sorted({_say_commit(part) for part in parts})
    return f"made by {', '.join(commits)}"


def _say_commit(part: dict[str, object]) -> str:
    if "commit" not in part:
        return "a commit that is not recorded"
    clean = part.get("clean")
    state = ", as it was told" if clean is None else "" if clean else " with changes"
    return f"commit {str(part['commit'])[:12]}{state}"
