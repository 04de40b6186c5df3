"""Importing the package is cheap, and what is heavy is imported where it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import neoteny

HEAVY = ("numba", "pandas", "matplotlib", "pybullet", "mujoco", "gymnasium", "plotly", "pyarrow")


def imported(code: str) -> set[str]:
    program = f"{code}\nimport sys; print(*(name.partition('.')[0] for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_import_neoteny_imports_nothing_heavy_not_even_torch() -> None:
    assert not imported("import neoteny") & {*HEAVY, "torch"}
    assert not imported("import neoteny; assert not hasattr(neoteny, 'atach')") & {*HEAVY, "torch"}


def test_using_every_public_name_imports_torch_and_numpy_and_nothing_else() -> None:
    tell_before = "import numpy, sys, torch; print(*sys.modules, sep='|', end=' ')"
    trace_one = "trace(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1)), torch.zeros(1, 2))"
    tell_compiler = "print('torch._dynamo' in sys.modules)"  # two seconds
    program = f"{tell_before}\nfrom neoteny import *\nprint(*sys.modules, sep='|')\n{trace_one}\n{tell_compiler}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    *told, compiler = done.stdout.split()
    assert compiler == "False"
    before, after = ({name.partition(".")[0] for name in each.split("|")} for each in told)
    assert not after & set(HEAVY)
    assert after - before - sys.stdlib_module_names == {"neoteny"}


@pytest.mark.parametrize("name", neoteny.__all__)
def test_every_public_name_resolves(name: str) -> None:
    assert getattr(neoteny, name) is not None


def test_an_unknown_name_is_an_attribute_error_that_suggests_the_nearest() -> None:
    for name, hint in (("atach", "attach"), ("ContinualBackpropagation", "ContinualBackprop")):
        with pytest.raises(AttributeError, match=rf"no attribute '{name}'\. Did you mean '{hint}'\?"):
            getattr(neoteny, name)
    with pytest.raises(AttributeError, match=r"no attribute 'xyz'\.$"):
        _ = neoteny.xyz  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ImportError, match="cannot import name 'atach'"):
        from neoteny import atach  # pyright: ignore[reportAttributeAccessIssue] # noqa: F401
    from neoteny import text  # a module that is no public name

    assert text.__name__ == "neoteny.text"
