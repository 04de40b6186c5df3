"""Mistakes of public code, each as a change of one place of this package, with the tests that must notice."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
UNIT = "tests/unit/methods"


@dataclass(frozen=True)
class Mutation:
    """One mistake.

    Attributes:
        name: the method, and what is wrong.
        file: of the package.
        right, wrong: the text that is replaced, which must stand there once, and what replaces it.
        tests: arguments of pytest.
    """

    name: str
    file: str
    right: str
    wrong: str
    tests: tuple[str, ...]


MUTATIONS = [
    Mutation(
        "ReDo: the optimizer's state of outgoing weights is left alone",
        "units/reset.py",
        "        view.write(outgoing, 0.0)\n        view.was_reset(outgoing)\n",
        "        view.write(outgoing, 0.0)\n",
        (f"{UNIT}/test_method_agreement.py", "-k", "redo"),
    ),
    Mutation(
        "SelectiveWeightReinit: a masked write edits a copy",
        "layers/regions.py",
        "            tensor.copy_(torch.where(mask, fresh, tensor))\n",
        "            tensor[mask].copy_(fresh[mask])\n",
        (
            f"{UNIT}/test_vectors_unit_resets.py",
            f"{UNIT}/test_unit_resets_agreement.py",
            "-k",
            "swr or SWR or Selective",
        ),
    ),
    Mutation(
        "SelfNormalizedResets: a unit that always fires gets the smallest threshold",
        "methods/self_normalized_resets.py",
        "    return torch.where(total.squeeze(-1) > 0.0, proposed, threshold)\n",
        "    return proposed\n",
        (f"{UNIT}/test_pitfalls_unit_resets.py",),
    ),
    Mutation(
        "ReGraMa: gradients are read after loss terms have joined them",
        "methods/regrama.py",
        "    def observe(self",
        "    def transform_gradients(self",
        (f"{UNIT}/test_pitfalls_unit_resets.py",),
    ),
    Mutation(
        "WeightClipping: a bias gets a bound of its own size, not its weight's",
        "methods/weight_clipping.py",
        "math.sqrt(layer.inputs)",
        "math.sqrt(parameter.shape[-1])",
        (f"{UNIT}/test_vectors_weights.py", f"{UNIT}/test_weights_agreement.py", "-k", "lip"),
    ),
    Mutation(
        "HareAndTortoise: the copy shares its storage with the slow weights",
        "methods/hare_and_tortoise.py",
        "fast.copy_(slow)",
        "fast.data = slow.data",
        (f"{UNIT}/test_method_agreement.py", "-k", "hare"),
    ),
    Mutation(
        "PlasticityInjection: the optimizer never gets the new head",
        "attachment/module_view.py",
        '                home["params"].append(parameter)\n',
        "                pass\n",
        (f"{UNIT}/test_pitfalls_weights.py", "tests/conformance/test_boundaries.py", "-k", "njection"),
    ),
    Mutation(
        "L2Init: the initial weights share their storage with the live ones",
        "methods/l2_init.py",
        "lambda: parameter.detach().clone()",
        "lambda: parameter.detach()",
        (f"{UNIT}/test_method_agreement.py", "-k", "l2-init"),
    ),
    Mutation(
        "Spectral: the singular value has no gradient",
        "methods/spectral.py",
        "    return (left.unsqueeze(-2) @ matrix",
        "    return (left.unsqueeze(-2) @ matrix.detach()",
        (f"{UNIT}/test_method_agreement.py", "-k", "spectral"),
    ),
    Mutation(
        "UPGD: where no utility is positive, the sign of the scale flips",
        "methods/upgd.py",
        "scale.clamp_min(torch.finfo(utility.dtype).tiny)",
        "scale",
        (f"{UNIT}", "-k", "UPGD or upgd"),
    ),
    Mutation(
        "DASH: the pass over new data moves batch-norm statistics",
        "methods/dash.py",
        "            buffer.copy_(kept[name])\n",
        "            pass\n",
        (f"{UNIT}/test_pitfalls_weights.py", "tests/conformance/test_boundaries.py", "-k", "DASH or dash"),
    ),
    Mutation(
        "TRAC: a weight that another method resets counts as displaced",
        "methods/trac.py",
        "                region.copy(value, tensor)\n",
        "                pass\n",
        ("tests/conformance/test_resets.py", "-k", "TRAC"),
    ),
    Mutation(
        "SoftShrinkAndPerturb: every update mixes in the same network",
        "methods/soft_shrink_and_perturb.py",
        'parameters, state["step"], ',
        "parameters, 1, ",
        (f"{UNIT}/test_weights_agreement.py", "-k", "oft"),
    ),
    Mutation(
        "Adam: a reset restarts the step count of all weights of the tensor",
        "methods/adam_update.py",
        "        put(vector, region.index, step - _missed(resets), region.active)\n",
        "        vector.fill_(step - _missed(resets))\n",
        (f"{UNIT}/test_pitfalls_unit_resets.py", "-k", "one_step_size"),
    ),
    Mutation(
        "CChain: the old network shares its storage with the live one",
        "methods/c_chain.py",
        "{str(age): parameter.detach().clone() for age",
        "{str(age): parameter.detach() for age",
        ("tests/conformance/test_methods.py", "-k", "memory and CChain"),
    ),
    Mutation(
        "NormalizeAndProject: only every tenth update is projected",
        "methods/normalize_and_project.py",
        "        due = count_update(state, self.period)\n",
        "        due = count_update(state, 10 * self.period)\n",
        (f"{UNIT}/test_pitfalls_weights.py", "-k", "every_update"),
    ),
    Mutation(
        "HardReset: a head that shares its weight with an embedding is silently left as it is",
        "methods/chosen_layers.py",
        "    _refuse_shared(view, method, chosen)\n",
        "",
        (f"{UNIT}/test_pitfalls_heads.py", "-k", "refused"),
    ),
]


def run(mutation: Mutation) -> tuple[bool, str]:
    """Whether the tests noticed, and pytest's closing line."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in ("src", "tests"):
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        shutil.copy(ROOT / "pyproject.toml", copy)
        path = copy / "src" / "neoteny" / mutation.file
        text = path.read_text()
        if text.count(mutation.right) != 1:
            raise ValueError(f"{mutation.name}: expected {mutation.right!r} once in {mutation.file}.")
        path.write_text(text.replace(mutation.right, mutation.wrong))
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *mutation.tests]
        environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=600)
    closing = (done.stdout.strip().splitlines() or [done.stderr.strip()])[-1]
    return done.returncode == 1 and "failed" in closing, closing
