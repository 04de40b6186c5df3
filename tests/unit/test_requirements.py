"""requirements.lock has the hashes of all that requirements.txt pins, and that is all that pyproject.toml asks for."""

from __future__ import annotations

import re
import tomllib
from itertools import product
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
WITHOUT_HASH = {"torch"}
"""Registries have different files of the same version: with CUDA, or for the CPU alone."""

ENVIRONMENTS = [
    {
        "python_version": python,
        "python_full_version": f"{python}.1",
        "sys_platform": system,
        "platform_machine": machine,
    }
    for python, (system, machine) in product(
        ("3.11", "3.12", "3.13", "3.14"), (("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64"))
    )
]


def pinned(text: str) -> dict[str, Requirement]:
    """The requirements of a file, by name; continued lines are one."""
    lines = re.sub(r"\\\n", " ", re.sub(r"#.*", "", text)).splitlines()
    found = [Requirement(line.partition("--hash")[0]) for line in lines if line.strip()]
    return {canonicalize_name(each.name): each for each in found}


REQUIRED = pinned((ROOT / "requirements.txt").read_text())
LOCK = (ROOT / "requirements.lock").read_text()


def installed(pins: dict[str, Requirement], environment: dict[str, str]) -> dict[str, str]:
    """Name and version of everything that is for an environment."""
    return {
        name: str(each.specifier)
        for name, each in pins.items()
        if each.marker is None or each.marker.evaluate(environment)
    }


@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=lambda each: "-".join(list(each.values())[1:]))
def test_the_lock_has_what_is_required_on_every_platform(environment: dict[str, str]) -> None:
    required = installed(REQUIRED, environment)
    for name in WITHOUT_HASH:
        del required[name]
    assert installed(pinned(LOCK), environment) == required, "run `make lock` after a change of requirements.txt"


def test_everything_is_pinned_to_one_version() -> None:
    assert [name for name, each in REQUIRED.items() if not re.fullmatch(r"==[^*,]+", str(each.specifier))] == []


def test_everything_in_the_lock_has_hashes() -> None:
    entries = re.split(r"^(?=\S)", re.sub(r"^#.*\n", "", LOCK, flags=re.MULTILINE), flags=re.MULTILINE)
    hashes = {
        entry.partition("==")[0]: re.findall(r"--hash=sha256:[0-9a-f]{64}\b", entry) for entry in entries if entry
    }
    assert len(hashes) == len(REQUIRED) - len(WITHOUT_HASH)
    assert [name for name, found in hashes.items() if not found] == []


def test_what_pyproject_asks_for_is_pinned_to_a_version_that_it_accepts() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for extra in ("zoo", "tensorboard", "wandb", "mlflow"):  # not installed beside the others
        extras.pop(extra)
    asked = [
        Requirement(text) for text in [*project["dependencies"], *(each for extra in extras.values() for each in extra)]
    ]
    for each in asked:
        if not each.name.startswith("cupy"):  # needs a GPU; installed beside the others
            (version,) = REQUIRED[canonicalize_name(each.name)].specifier
            assert each.specifier.contains(version.version), each


def test_using_the_library_needs_torch_and_numpy_alone() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {Requirement(text).name for text in project["dependencies"]} == {"torch", "numpy"}
