"""A wheel and an sdist, built and installed elsewhere: nothing of the checkout is needed, nothing else is in them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import neoteny

ROOT = Path(__file__).parents[2]
NOT_COPIED = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "site", "out", "results")
BUILD = "import setuptools.build_meta as build; print(build.build_sdist('dist')); print(build.build_wheel('dist'))"

pytestmark = pytest.mark.slow


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """The output of a command that knows nothing of the checkout."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "NEOTENY"))}
    done = subprocess.run(command, cwd=cwd, env={**kept, **environment}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with both, built in a copy of the checkout."""
    copy = tmp_path_factory.mktemp("build") / "neoteny"
    shutil.copytree(ROOT, copy, ignore=NOT_COPIED)
    run(sys.executable, "-c", BUILD, cwd=copy)
    return copy / "dist"


@pytest.fixture(scope="module")
def installed(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel in it and nothing else."""
    (wheel,) = dist.glob("*.whl")
    target = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(target)]
    run(*pip, str(wheel), cwd=target)
    return target


def test_the_wheel_has_every_file_of_the_package_and_no_other(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    assert wheel.name == f"neoteny-{neoteny.__version__}-py3-none-any.whl"
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    package = ROOT / "src"
    files = {path.relative_to(package).as_posix() for path in (package / "neoteny").rglob("*") if path.is_file()}
    assert names == {name for name in files if "__pycache__" not in name}


def test_the_sdist_has_what_its_tests_read_and_no_results(dist: Path) -> None:
    (archive,) = dist.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    for folder in ("src/neoteny", "tests", "examples", "benchmarks", "docs"):
        files = {path.relative_to(ROOT).as_posix() for path in (ROOT / folder).rglob("*.py")}
        assert files <= names
    for name in (
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "CITATION.cff",
        "Makefile",
        "requirements.txt",
    ):
        assert name in names
    assert not [name for name in names if name.startswith("evidence") or "__pycache__" in name or name.endswith(".pyc")]
    assert archive.stat().st_size < 8 * 2**20


def test_the_installed_package_works_in_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    here = {"PYTHONPATH": str(installed)}
    where = run(sys.executable, "-c", "import neoteny; print(neoteny.__file__)", cwd=tmp_path, **here)
    assert Path(where.strip()).is_relative_to(installed)
    version = f"neoteny {neoteny.__version__}\n"
    assert run(installed / "bin" / "neoteny", "--version", cwd=tmp_path, **here) == version
    assert run(sys.executable, "-m", "neoteny", "--version", cwd=tmp_path, **here) == version
    assert "scr-cbp" in run(installed / "bin" / "neoteny", "list", cwd=tmp_path, **here)
    assert list(tmp_path.iterdir()) == []


def test_the_installed_library_trains_a_network(installed: Path, tmp_path: Path) -> None:
    shutil.copy(ROOT / "examples" / "drop_in.py", tmp_path)
    output = run(sys.executable, "drop_in.py", cwd=tmp_path, PYTHONPATH=str(installed))
    assert "units replaced so far" in output
