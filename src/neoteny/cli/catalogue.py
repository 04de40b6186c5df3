"""Everything that has a name, each with its first line of documentation, for `neoteny list`.

The package's files are parsed, not imported: importing them takes seconds, because of torch. A new method, network or
problem is listed once its package exports it, a new agent once its class exists, a new measure once it is in
`MEASURES`, a new experiment once `neoteny.experiments` knows its name.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path

from neoteny import experiments

Lines = list[tuple[str, str]]
"""Names, each with the first line of its docstring."""

_SOURCE = Path(experiments.__file__).parents[2]


def list_experiments() -> dict[str, Lines]:
    """The experiments with their titles: those of the paper, our own, those of the field, numbers of others."""
    groups = {
        "paper's experiment": experiments.NAMES,
        "our own experiment": experiments.VARIANTS,
        "all methods": experiments.FIELD,
        "others' numbers": experiments.PUBLISHED,
    }
    return {
        group: [(name, _first_line(_parse(experiments.module_of(name))).rstrip(".")) for name in names]
        for group, names in groups.items()
    }


def list_things() -> dict[str, Lines]:
    """Problems, methods, agents, networks, the layers among them that are remedies, and measures."""
    remedies = _remedies("neoteny.methods.remedies")
    names = {name for name, _ in remedies}
    return {
        "problem": _exported("neoteny.problems", ("neoteny.problems.problem",)),
        "method": _exported("neoteny.methods", ("neoteny.methods.method", "neoteny.methods.unit_method")),
        "agent": list(_agents("neoteny.suite.rl")),
        "network": [(name, line) for name, line in _exported("neoteny.nets") if name not in names],
        "layer": remedies,
        "measure": [
            *_measures("neoteny.suite.measures", "MEASURES"),
            *_measures("neoteny.suite.plasticity_probe", "LEARNING_MEASURES"),
        ],
    }


@functools.cache
def _parse(module: str) -> ast.Module:
    path = _SOURCE.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))


def _first_line(node: ast.Module | ast.ClassDef | ast.FunctionDef) -> str:
    return (ast.get_docstring(node) or "").partition("\n")[0].strip()


def _definition(module: str, name: str) -> ast.ClassDef | ast.FunctionDef | None:
    for node in _parse(module).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == name:
            return node
    return None


def _exported(package: str, contracts: Sequence[str] = ()) -> Lines:
    """The classes in a package's `__all__`, without those of the modules that define what others derive from.

    A class method is a preset, and has a line of its own behind its class.
    """
    homes = {
        alias.name: node.module
        for node in _parse(package).body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    names = ast.literal_eval(_assigned(package, "__all__"))
    found = ((name, _definition(homes[name], name)) for name in names if name in homes and homes[name] not in contracts)
    lines: Lines = []
    for name, node in found:
        if isinstance(node, ast.ClassDef):
            lines.append((name, _first_line(node)))
            lines += [(f"{name}.{preset.name}", _first_line(preset)) for preset in _presets(node)]
    return lines


def _presets(node: ast.ClassDef) -> Iterator[ast.FunctionDef]:
    """The public class methods of a class."""
    for each in node.body:
        if not isinstance(each, ast.FunctionDef) or each.name.startswith("_"):
            continue
        if any(isinstance(mark, ast.Name) and mark.id == "classmethod" for mark in each.decorator_list):
            yield each


def _assigned(module: str, name: str) -> ast.expr:
    """The value that a module assigns to a global name."""
    for node in _parse(module).body:
        if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return node.value
    raise LookupError(f"{module} does not assign {name}.")


def _agents(package: str) -> Iterator[tuple[str, str]]:
    """The classes of a package's modules that derive from `Agent`."""
    for file in sorted(_SOURCE.joinpath(*package.split(".")).glob("*.py")):
        for node in _parse(f"{package}.{file.stem}" if file.stem != "__init__" else package).body:
            if isinstance(node, ast.ClassDef) and any(
                isinstance(base, ast.Name) and base.id == "Agent" for base in node.bases
            ):
                yield node.name, _first_line(node)


def _remedies(module: str) -> Lines:
    """The keys of `REMEDIES`, each with its first field, a line on what it is."""
    table = _assigned(module, "REMEDIES")
    assert isinstance(table, ast.Dict)
    calls = zip(table.keys, table.values, strict=True)
    return [
        (ast.literal_eval(key), ast.literal_eval(call.args[0]))
        for key, call in calls
        if isinstance(call, ast.Call) and key
    ]


def _measures(module: str, name: str) -> Lines:
    """The keys of a dict of measures, each with the first line of its function."""
    table = _assigned(module, name)
    assert isinstance(table, ast.Dict)
    found: Lines = []
    for key, value in zip(table.keys, table.values, strict=True):
        if isinstance(key, ast.Constant) and isinstance(key.value, str) and isinstance(value, ast.Name):
            node = _definition(module, value.id)
            found.append((key.value, _first_line(node) if node else ""))
    return found
