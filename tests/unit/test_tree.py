"""docs/tree.md names every file of the package, in its folder and with a line on it, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "neoteny"
INDENT = 2


def named(text: str) -> dict[str, str]:
    """The paths of a tree, relative to its first line, with what it says of each.

    A line is indented by two spaces per level and has a name, then spaces, then a description; a name that ends in "/"
    is a folder.
    """
    found: dict[str, str] = {}
    folders: list[str] = []
    for line in text.splitlines()[1:]:
        name, _, description = line.strip().partition(" ")
        depth = (len(line) - len(line.lstrip())) // INDENT
        folders = folders[: depth - 1]
        path = "".join([*folders, name])
        assert path not in found, f"the tree has {path} twice"
        found[path] = description.strip()
        if name.endswith("/"):
            folders.append(name)
    return found


def present() -> set[str]:
    """Every folder and file of the package; a folder's `__init__.py` is the folder's own line."""
    paths: set[str] = set()
    for path in PACKAGE.rglob("*"):
        if path.suffix not in (".py", ".cu", ".html", ".css", ".js"):
            continue
        relative = path.relative_to(PACKAGE)
        paths |= {f"{parent.as_posix()}/" for parent in relative.parents if parent.name}
        if path.name != "__init__.py" or len(relative.parts) == 1:
            paths.add(relative.as_posix())
    return paths


def test_a_tree_is_read_by_its_indentation() -> None:
    tree = "top/\n  a.py   first\n  b/     second\n    c.py third\n    d/   fourth\n      e.py fifth\n  f.py   sixth"
    assert named(tree) == {
        "a.py": "first",
        "b/": "second",
        "b/c.py": "third",
        "b/d/": "fourth",
        "b/d/e.py": "fifth",
        "f.py": "sixth",
    }


def test_the_tree_names_every_file_of_the_package() -> None:
    page = (ROOT / "docs" / "tree.md").read_text()
    (block,) = re.findall(r"^```\n(src/neoteny/\n.*?)^```", page, re.DOTALL | re.MULTILINE)
    tree = named(block)
    assert present() - set(tree) == set(), "in the package, but not in docs/tree.md"
    assert set(tree) - present() == set(), "in docs/tree.md, but not in the package"
    assert [path for path, description in tree.items() if not description] == []
