"""Module names of earlier versions, for experiment files written for them.

A results folder holds a copy of its user's experiment file, and that copy imports modules by the names they had when it
was written. `install` lets such imports succeed: an old name becomes a module with the contents of the new one, and a
warning names the new one. It is called when a user's file is loaded and stays, because functions of the file may import
later; it is asked last, so only names that nothing else provides reach it.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MODULES = {
    "checkpoint": "methods.saved_state",
    "commands": "cli.show",
    "compiled": "units.fused_tick",
    "control": "diagnosis.fresh_copy",
    "engine": "suite",
    "engine.agents": "suite.rl.agent",
    "engine.checkpoints": "suite.store.checkpoints",
    "engine.episodes": "suite.rl.episodes",
    "engine.errors": "suite.store.errors",
    "engine.files": "suite.store.files",
    "engine.graphs": "backends.graphs.backend",
    "engine.identity": "suite.identity",
    "engine.measures": "suite.measures",
    "engine.paths": "backends.backend",
    "engine.pooling": "backends.graphs.relu_pool",
    "engine.ppo": "suite.rl.ppo",
    "engine.progress": "suite.progress",
    "engine.running": "suite.worker",
    "engine.selection": "suite.selection",
    "engine.side_by_side": "backends.graphs.conv_streams",
    "engine.stacks": "suite.stacks",
    "engine.stopping": "suite.stopping",
    "engine.store": "suite.store.results",
    "engine.sweep": "suite.sweep",
    "engine.tables": "suite.store.tables",
    "engine.training": "suite.training",
    "engine.workers": "suite.processes",
    "experiments.ant_methods": "experiments.ant.methods",
    "experiments.ant_settings": "experiments.ant.settings",
    "experiments.ant_sweep": "experiments.ant.sweep",
    "experiments.ant_trends": "experiments.ant.charts",
    "experiments.ant_utilities": "experiments.ant.utilities",
    "experiments.borrowed": "experiments.variants.reuse",
    "experiments.imagenet_bp": "experiments.imagenet.bp",
    "experiments.imagenet_bp_claims": "experiments.imagenet.bp",
    "experiments.imagenet_methods": "experiments.imagenet.methods",
    "experiments.imagenet_settings": "experiments.imagenet.settings",
    "experiments.imagenet_sweep": "experiments.imagenet.sweep",
    "experiments.mnist_cbp_claims": "experiments.mnist.claims",
    "experiments.mnist_change_rate": "experiments.mnist.change_rate",
    "experiments.mnist_dropout_norm_adam_claims": "experiments.mnist.claims",
    "experiments.mnist_known_claims": "experiments.mnist.claims",
    "experiments.mnist_learners": "experiments.mnist.settings",
    "experiments.mnist_methods": "experiments.mnist.methods",
    "experiments.mnist_sensitivity": "experiments.mnist.sensitivity",
    "experiments.mnist_sensitivity_claims": "experiments.mnist.sensitivity",
    "experiments.mnist_sensitivity_sizes": "experiments.mnist.sensitivity",
    "experiments.mnist_step_size": "experiments.mnist.step_size",
    "experiments.mnist_trends": "experiments.mnist.charts",
    "experiments.mnist_width": "experiments.mnist.width",
    "experiments.regression_settings": "experiments.regression.settings",
    "experiments.scr_activations": "experiments.regression.activations",
    "experiments.scr_cbp": "experiments.regression.cbp",
    "experiments.scr_utilities": "experiments.regression.utilities",
    "experiments.windows": "report.trends",
    "forwards": "stacking.forward",
    "fused_adam": "methods.fused_adam",
    "groups": "layers.groups",
    "initial": "draws.initial",
    "judge": "wiring.verify",
    "kernels": "backends.kernel",
    "kernels.actor_critic": "backends.actor_critic",
    "kernels.cpu": "backends.kernel.cpu.kernel",
    "kernels.cpu_arguments": "backends.kernel.cpu.arguments",
    "kernels.cpu_draws": "draws.philox",
    "kernels.cpu_lanes": "backends.kernel.cpu.lanes",
    "kernels.cpu_layers": "backends.kernel.cpu.layers",
    "kernels.cpu_narrow": "backends.kernel.cpu.narrow",
    "kernels.cpu_norm": "backends.kernel.cpu.norm",
    "kernels.cpu_units": "backends.kernel.cpu.units",
    "kernels.cpu_wide": "backends.kernel.cpu.wide",
    "kernels.cuda": "backends.kernel.cuda.kernel",
    "kernels.cuda_plan": "backends.kernel.cuda.plan",
    "kernels.cuda_source": "backends.kernel.cuda.source",
    "kernels.due": "backends.kernel.schedule",
    "kernels.examples": "backends.kernel.examples",
    "kernels.packing": "backends.kernel.pack",
    "kernels.path": "backends.kernel.backend",
    "kernels.specification": "backends.kernel.options",
    "kinds": "layers.kinds",
    "launch": "cli.run",
    "noise": "draws.noise",
    "numerics": "units.numerics",
    "optimizer_state": "optim.state",
    "ports": "layers.ports",
    "probe": "wiring.probe",
    "problems.ant_mujoco": "problems.ant.mujoco",
    "problems.ant_pybullet": "problems.ant.pybullet",
    "problems.class_sources": "problems.imagenet.classes",
    "problems.continual_imagenet": "problems.imagenet.continual",
    "problems.dataset_texts": "problems.data.texts",
    "problems.datasets": "problems.data.datasets",
    "problems.digit_sources": "problems.mnist.images",
    "problems.download": "problems.data.download",
    "problems.files": "problems.data.files",
    "problems.friction": "problems.ant.friction",
    "problems.imagenet_batches": "problems.imagenet.batches",
    "problems.permuted_mnist": "problems.mnist.permuted",
    "problems.pixels": "problems.data.pixels",
    "problems.simulators": "problems.ant.simulators",
    "problems.slippery_ant": "problems.ant.env",
    "problems.slippery_ant_vector": "problems.ant.vector_env",
    "problems.slowly_changing_regression": "problems.regression",
    "problems.synthetic": "problems.data.synthetic",
    "reading": "wiring.read_point",
    "recording": "attachment.hooks",
    "rng": "draws.rng",
    "schedule": "units.schedule",
    "search": "wiring.classify",
    "stage": "wiring.sandbox",
    "summary": "attachment.summary",
    "table": "text",
    "verdict": "diagnosis.result",
    "view": "units.view",
}
"""Old module -> new module, both without "neoteny."."""

NAMES = {
    "engine.stacks": {"StackOfRuns": "PlannedStack"},
    "experiments.borrowed": {"borrow": "reuse", "set_aside": "omit"},
}
"""Old module -> names in it that changed too."""

ALSO = {
    "experiments.ant_trends": ("report.trends",),
    "experiments.mnist_trends": ("report.claim", "report.trends"),
    "experiments.windows": ("report.claim",),
}
"""Old module -> further modules that have a part of its contents now."""


class _OldNames(MetaPathFinder, Loader):
    """Finds modules by the names in `MODULES`."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None):
        if _short(fullname) not in MODULES:
            return None
        return ModuleSpec(fullname, self, is_package=_is_package(_short(fullname)))

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        old, name = _short(module.__name__), module.__name__
        new = importlib.import_module(f"neoteny.{MODULES[old]}")
        parts = [vars(importlib.import_module(f"neoteny.{part}")) for part in ALSO.get(old, ())]
        contents = {key: value for part in (*parts, vars(new)) for key, value in part.items()}
        contents = {key: value for key, value in contents.items() if key not in vars(module)}
        contents |= {before: getattr(new, after) for before, after in NAMES.get(old, {}).items()}
        vars(module).update(contents)
        if not _is_package(old):  # the module that is imported from a package has its own warning
            warnings.warn(f"{name} is now {new.__name__}; please change the import.", FutureWarning, stacklevel=2)


def install() -> None:
    """Let old module names be imported from now on."""
    if not any(isinstance(finder, _OldNames) for finder in sys.meta_path):
        sys.meta_path.append(_OldNames())


def _is_package(old: str) -> bool:
    return any(other.startswith(f"{old}.") for other in MODULES)


def _short(module: str) -> str:
    return module.removeprefix("neoteny.") if module.startswith("neoteny.") else ""
