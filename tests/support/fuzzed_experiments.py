"""Experiment files that are wrong somewhere: mutations of a good one, and whether the commands say what is wrong."""

from __future__ import annotations

import ast
import random
import shutil
from collections.abc import Callable
from pathlib import Path

from support.fuzzing import RUN, TINY, Ending, Said, call, first_fault

NAME = "tiny.py"
VALUES = (
    *("None", "True", "0", "-1", "1.5", "float('nan')", "float('inf')", "''", "'x'", "'ünï\\0'", "b'x'", "[]", "{}"),
    *("()", "(1,)", "object()", "lambda *a: 0", "(i for i in range(3))", "int", "...", "{1, 2}", "NET", "3 + 4j"),
    *("range(3)", "__import__('numpy').ones(2)", "__import__('pandas').DataFrame()", "__import__('torch').ones(2)"),
)
"""Expressions that take the place of another."""
HUGE = ("10**400", "-10**400", "2**70", "1e308", "'9' * 5000")
"""Numbers that no run should be given the length of."""
STATEMENTS = (
    *("1 / 0", "{}['missing']", "[][1]", "None.attribute", "undefined_name", "import no_such_module", "int('x')"),
    *("raise RuntimeError('boom')", "raise Exception", "raise KeyError('k')", "raise OSError(28, 'No space left')"),
    *("raise StopIteration", "raise RecursionError('deep')", "raise MemoryError", "raise UnicodeError('ünï')"),
    *("raise ValueError('two\\nlines')", "raise AssertionError", "raise Warning('careful')", "raise SystemExit"),
    *(
        "import sys; sys.exit(3)",
        "import sys; sys.exit('bye')",
        "exit()",
        "raise KeyboardInterrupt",
        "raise GeneratorExit",
    ),
    *(
        "class E(Exception):\n        __str__ = None\n    raise E",
        "def f(): return f()\n    f()",
        "raise type('E', (BaseException,), {})",
    ),
    *("return None", "return 3", "return 'text'", "yield 1", "return [None]", "return {}", "return lambda: 0"),
    *(
        "print('hello')",
        "import warnings; warnings.warn('careful')",
        "global NET; NET = None",
        "del globals()['claims']",
    ),
)
"""Statements that are put at the start of a function, or into the file."""
FRAMES = (
    *("frame.drop(columns='value', inplace=True)", "frame['value'] = float('nan')", "frame.iloc[:, :] = 0"),
    *(
        "frame.drop(frame.index, inplace=True)",
        "frame['value'] = frame['value'].astype(str)",
        "frame.columns = range(len(frame.columns))",
    ),
)
"""Statements that change the table they were given."""


class Experiments:
    """Runs mutated experiment files in a folder where the good one has finished a setting."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._prepared, self._root = folder, folder / "prepared", folder / "results"
        self._experiment = folder / NAME
        self._experiment.write_text(TINY)
        assert call("run", self._experiment, *RUN, "--methods", "BP", "--out", self._prepared).status == 0
        self._parts = {path.name: path.read_bytes() for path in self._prepared.glob("parts/*")}
        assert len(self._parts) == 2

    def check(self, draw: random.Random) -> Ending:
        """Run a mutated file to its end, and look at what came out."""
        shutil.rmtree(self._root, ignore_errors=True)
        shutil.copytree(self._prepared, self._root)
        mutation = draw.choice(list(MUTATIONS))
        content = MUTATIONS[mutation](draw)
        self._experiment.write_bytes(content)
        said = [call("run", self._experiment, *RUN, "--out", self._root)]
        said += [call("status", self._root), call("claims", self._root)]
        if draw.random() < 0.1:
            said.append(call("report", self._root))
        problem = first_fault(said, "tiny.py") or first_fault(said[3:], "experiment.py")
        problem = problem or next(filter(None, map(_nameless, said)), "")
        kept = {path.name: path.read_bytes() for path in self._root.glob("parts/*")}
        if not problem and not kept.items() >= self._parts.items():
            problem = "finished runs were changed"
        new = [line for line in content.decode(errors="replace").splitlines() if line not in TINY.splitlines()]
        return Ending(f"{mutation} {new[:3]}", any(each.status for each in said), problem)


def _nameless(said: Said) -> str:
    """What is wrong with a message that names neither the file nor the setting."""
    named = any(name in said.err for name in (NAME, "experiment.py", "BP", "results"))
    return "" if said.status in (0, 130) or named else f"a message without a place: {said.err}"


def _replace_value(draw: random.Random) -> bytes:
    """A constant, an argument or a returned value becomes something else."""
    tree = ast.parse(TINY)
    places: list[tuple[ast.AST, str, int | None]] = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.Call, ast.Return, ast.Assign, ast.Tuple, ast.keyword, ast.Dict)):
            for name, value in ast.iter_fields(node):
                if isinstance(value, ast.expr) and name in ("value",):
                    places.append((node, name, None))
                elif isinstance(value, list) and name in ("args", "elts", "values", "keys"):
                    places += [(node, name, number) for number in range(len(value))]
    node, name, number = draw.choice(places)
    _put(node, name, number, draw.choice(VALUES))
    return ast.unparse(ast.fix_missing_locations(tree)).encode(errors="surrogatepass")


def _replace_number(draw: random.Random) -> bytes:
    """A hyperparameter or a detail, not a length, becomes a huge number."""
    tree = ast.parse(TINY)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "SGD"]
    details = [node for node in ast.walk(tree) if isinstance(node, ast.Dict)]
    node = draw.choice([*calls, *details])
    _put(node, "args" if isinstance(node, ast.Call) else "values", 0, draw.choice(HUGE))
    return ast.unparse(ast.fix_missing_locations(tree)).encode()


def _put(node: ast.AST, name: str, number: int | None, text: str) -> None:
    new = ast.parse(text, mode="eval").body
    if number is None:
        setattr(node, name, new)
    else:
        getattr(node, name)[number] = new


def _insert_statement(draw: random.Random) -> bytes:
    """A statement at the start of a function, or somewhere in the file."""
    where = draw.choice(["def sweep(scale):\n", "def figure(frame):\n", "def check(frame):\n", "\nNET =", "\nclaims ="])
    if where.startswith("\n"):
        statement = draw.choice([each for each in STATEMENTS if "\n    " not in each])
        return TINY.replace(where, f"\n{statement}{where}").encode()
    statement = draw.choice([*STATEMENTS, *(FRAMES if "frame" in where else ())])
    return TINY.replace(where, f"{where}    {statement}\n").encode()


def _delete_statement(draw: random.Random) -> bytes:
    """A statement of the file or of a function is missing."""
    tree = ast.parse(TINY)
    bodies = [tree.body, *(node.body for node in tree.body if isinstance(node, ast.FunctionDef))]
    body = draw.choice([body for body in bodies if len(body) > 1 or body is tree.body])
    body.remove(draw.choice(body))
    return ast.unparse(tree).encode()


def _delete_argument(draw: random.Random) -> bytes:
    """An argument of a call is missing, or has another name."""
    tree = ast.parse(TINY)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and (node.args or node.keywords)]
    node = draw.choice(calls)
    if node.keywords and draw.random() < 0.6:
        keyword = draw.choice(node.keywords)
        keyword.arg = draw.choice([f"{keyword.arg}s", "x", "seed"])
    elif node.args:
        node.args.pop()
    return ast.unparse(tree).encode()


def _break_text(draw: random.Random) -> bytes:
    """A character too many or too few."""
    content = TINY.encode()
    at = draw.randrange(len(content))
    new = draw.choice([b"", b"(", b"'", b"\n", b"\t", b"\xe9", b"\0", b"\xff\xfe", "ünï".encode(), b"\x0c"])
    return content[:at] + new + content[at + draw.choice([0, 1, 20]) :]


def _other_text(draw: random.Random) -> bytes:
    """Another file altogether."""
    others = [
        b"",
        b"\0",
        b"3",
        b"\xef\xbb\xbf" + TINY.encode(),
        TINY.encode("utf-16"),
        b"# coding: nonsense\n",
        b"\x80abc",
    ]
    return draw.choice(
        [*others, b"(" * 3000, b"from tiny import *", b"import tiny", TINY.replace("\n", "\r\n").encode()]
    )


def _odd_claims(draw: random.Random) -> bytes:
    """Claims that are not claims, and checks that give no verdict."""
    bodies = ("None", "3", "'holds'", "(True, 'yes')", "1 / 0", "float('nan')", "exit()", "lambda: 0", "frame", "[]")
    if draw.random() < 0.5:
        before, _, rest = TINY.partition("    return above(")
        return (before + f"    return {draw.choice(bodies)}\n\n\n" + rest[rest.index("claims =") :]).encode()
    claim = draw.choice(
        ["Claim('', '', '', check)", "Claim(1, 2, 3, 4)", "Claim('n', 'ünï', 's', None)", "Claim", "check"]
    )
    kinds = (
        f"({claim},)",
        f"[{claim}] * 3",
        f"{{'a': {claim}}}",
        f"(c for c in [{claim}])",
        claim,
        "'text'",
        "(None,)",
    )
    return (TINY.partition("claims =")[0] + f"claims = {draw.choice(kinds)}\n").encode()


def _odd_charts(draw: random.Random) -> bytes:
    """Figures that are not charts, or charts of odd things."""
    lines = ("[None]", "None", "[[]]", "[3]", "'x'", "[frame]", "curve(frame, 'x')")
    charts = (
        *("None", "3", "'x'", "[]", "[None]", "(c for c in [])", "frame", "Chart", "[Chart]", "{}", "exit()"),
        *(f"[Chart('error', 'task', 'error', {each})]" for each in lines),
        *("[Chart(None, None, None, [])]", "[Chart('a', 'b', 'c', [])] * 3", "[Chart('../../up', 'b', 'c', [])]"),
        *("[Chart('<script>', 'ünï', '\\0', [])]", "Chart('x' * 5000, 'b', 'c', [])"),
    )
    before, _, rest = TINY.partition("    return [Chart(")
    return (before + f"    return {draw.choice(charts)}\n\n\n" + rest[rest.index("def check") :]).encode()


MUTATIONS: dict[str, Callable[[random.Random], bytes]] = {
    "another value": _replace_value,
    "a huge number": _replace_number,
    "a statement more": _insert_statement,
    "a statement less": _delete_statement,
    "an argument less": _delete_argument,
    "broken text": _break_text,
    "another text": _other_text,
    "odd claims": _odd_claims,
    "odd charts": _odd_charts,
}
