"""What was run for `docs/`: results folders and views of them, and what it would take to test the other claims.

The order matters: where several entries judge a claim, the first that can judge all of it counts, so the largest scale
comes first: the paper's network before narrower ones, even with fewer tasks. Counted are verdicts at a scale at which
the paper's sentence can be judged (`decides`); the others have a column of their own.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Picture:
    """One file of `docs/figures`.

    Args:
        file: its name, without folder and ending.
        charts: what it shows, side by side: the name of a group of charts, or the title of a single one.
    """

    file: str
    charts: tuple[str, ...]


@dataclass(frozen=True)
class Entry:
    """One results folder, or one more view of it, and where it is spoken of.

    Args:
        name: of the entry.
        run: the name of its experiment.
        judges: the experiments of the paper whose claims it judges; claims are matched by name.
        scale: in words, for tables.
        section: the heading of `docs/results.md`.
        pictures: what is drawn; empty for one picture of every group of charts, as the report draws them.
        folder: in `evidence/` and in `results/`; the name if empty. Several entries may be views of one folder, the
            first of them by its own name.
        so_far: whether unfinished runs count, as far as they are (`neoteny claims --so-far`).
        tasks: how many of the first tasks of each run count, finished or not (`neoteny claims --tasks`); None: all.
        decides: experiments, or claims as "experiment/claim", whose sentences can be judged at the scale of these runs.
            Other verdicts of the entry are shown as those of a smaller scale and are not counted.
        methods: that were run, where not all of the experiment's (`neoteny run --methods`).
        bin_tasks: tasks per bin of the means that are kept where the folder is too large to keep whole; 0: none are.
    """

    name: str
    run: str
    judges: tuple[str, ...]
    scale: str
    section: str
    pictures: tuple[Picture, ...] = ()
    folder: str = ""
    so_far: bool = False
    tasks: int | None = None
    decides: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    bin_tasks: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", self.folder or self.name)

    @property
    def summary(self) -> str:
        """The file of its summary in its folder.

        Example:
            >>> Entry("runs-67", "", (), "", "", folder="runs", tasks=67).summary
            'summary-67.json'
        """
        if self.name == self.folder:
            return "summary.json"
        return f"summary-{self.name.removeprefix(f'{self.folder}-')}.json"

    @property
    def view_options(self) -> list[str]:
        """Of `neoteny claims` and `neoteny report`."""
        return [*(["--so-far"] if self.so_far else []), *(["--tasks", str(self.tasks)] if self.tasks else [])]


REGRESSION = "Slowly-changing regression"
REGRESSION_BIN = 10
"""Of its 300 tasks: early and late tasks, as claims take them, are whole bins (`report.trends`)."""
MNIST = ("mnist-methods", "mnist-step-size", "mnist-sensitivity")
CORRELATES = "What changes in the networks"
BEGINNING = (
    *(f"mnist-step-size/{name}" for name in ("rises-first", "dead-units-grow", "weights-grow", "rank-falls")),
    "mnist-methods/one-unit-every-five-examples",
)
"""What fifty tasks of the paper's network can judge: sentences on what begins with the first tasks."""

ENTRIES = (
    Entry(
        "scr-activations-paper",
        "scr-activations",
        ("scr-activations",),
        "the paper's: 3 million examples, 100 runs",
        f"{REGRESSION} with six activations, at the paper's scale",
        (
            Picture("scr-activations-sgd", ("Backpropagation with SGD",)),
            Picture("scr-activations-adam", ("Backpropagation with Adam",)),
        ),
        decides=("scr-activations",),
        bin_tasks=REGRESSION_BIN,
    ),
    Entry(
        "scr-cbp-more",
        "scr-cbp",
        ("scr-cbp",),
        "the paper's: 3 million examples, 400 runs",
        f"{REGRESSION} with continual backpropagation: 400 runs",
        (
            Picture("scr-cbp-more-sgd", ("SGD, step size 0.01",)),
            Picture("scr-cbp-more-adam", ("Adam, step size 0.01",)),
        ),
        decides=("scr-cbp",),
        methods=("CBP", "Linear"),
        bin_tasks=REGRESSION_BIN,
    ),
    Entry(
        "scr-cbp-paper",
        "scr-cbp",
        ("scr-cbp",),
        "the paper's: 3 million examples, 100 runs, 400 of CBP with tanh",
        f"{REGRESSION} with continual backpropagation, at the paper's scale",
        (Picture("scr-cbp-sgd", ("SGD, step size 0.01",)), Picture("scr-cbp-adam", ("Adam, step size 0.01",))),
        decides=("scr-cbp",),
        bin_tasks=REGRESSION_BIN,
    ),
    Entry(
        "scr-cbp-laptop",
        "scr-cbp",
        ("scr-cbp",),
        "laptop: 70,000 examples, tanh and ReLU alone, 100 runs",
        f"{REGRESSION} at laptop scale",
        (
            Picture("scr-cbp-laptop-sgd", ("SGD, step size 0.01",)),
            Picture("scr-cbp-laptop-adam", ("Adam, step size 0.01",)),
        ),
        bin_tasks=1,
    ),
    Entry(
        "scr-variants",
        "scr-variants",
        (),
        "the paper's: 3 million examples, 100 runs",
        f"{REGRESSION}: continual backpropagation in variants",
        (Picture("scr-variants", ("Variants, and L2",)),),
        bin_tasks=50,
    ),
    Entry(
        "scr-utilities-paper",
        "scr-utilities",
        ("scr-utilities",),
        "the paper's: 3 million examples, 100 runs",
        f"{REGRESSION} with six utilities, at the paper's scale",
        (
            Picture("scr-utilities-rates", ("Utilities over replacement rates",)),
            Picture("scr-utilities-best", ("Each utility at its best replacement rate",)),
        ),
        decides=("scr-utilities",),
        bin_tasks=REGRESSION_BIN,
    ),
    Entry(
        "two-thousand-units",
        "two-thousand-units",
        MNIST,
        "50 tasks, the paper's 2,000 units per layer, 3 runs",
        "Permuted MNIST with the paper's network",
        (
            Picture("two-thousand-units-accuracy", ("Online accuracy",)),
            Picture("two-thousand-units-networks", (CORRELATES,)),
        ),
        decides=BEGINNING,
    ),
    Entry(
        "hundred-units",
        "hundred-units",
        MNIST,
        "800 tasks, 100 units per layer, 5 to 8 runs",
        "Permuted MNIST with 100 units per layer: seven methods, 800 tasks",
        (
            Picture("hundred-units-accuracy", ("Online accuracy of each method",)),
            Picture("hundred-units-networks", (CORRELATES,)),
            Picture("hundred-units-step-sizes", ("Backpropagation at three step sizes",)),
            Picture("hundred-units-step-sizes-networks", ("What changes at three step sizes",)),
            Picture("hundred-units-settings", ("Settings of each method",)),
        ),
    ),
    Entry(
        "hundred-units-change",
        "hundred-units-change",
        ("mnist-change-rate",),
        "48 million examples, 100 units per layer, 8 runs",
        "Permuted MNIST with 100 units per layer: how often the task changes",
    ),
    Entry(
        "three-hundred-units",
        "three-hundred-units",
        (),
        "200 tasks, 300 units per layer, 6 runs",
        "Permuted MNIST with 300 units per layer",
        (
            Picture("three-hundred-units-accuracy", ("Online accuracy",)),
            Picture("three-hundred-units-networks", (CORRELATES,)),
        ),
    ),
    Entry(
        "thousand-units",
        "thousand-units",
        (),
        "100 tasks, 1,000 units per layer, 3 runs",
        "Permuted MNIST with 1,000 units per layer",
        (
            Picture("thousand-units-accuracy", ("Online accuracy",)),
            Picture("thousand-units-networks", (CORRELATES,)),
        ),
    ),
    Entry(
        "cbp-variants",
        "cbp-variants",
        (),
        "40 tasks, 100 units per layer, 3 runs",
        "Continual backpropagation in variants",
        (Picture("cbp-variants", ("Variants, and L2",)),),
    ),
    Entry(
        "eight-hundred-tasks",
        "eight-hundred-tasks",
        ("mnist-methods",),
        "800 tasks, 100 units per layer, 1 run",
        "Eight hundred tasks of online permuted MNIST",
        (
            Picture("eight-hundred-tasks-accuracy", ("Online accuracy",)),
            Picture("eight-hundred-tasks-networks", (CORRELATES,)),
        ),
    ),
    Entry(
        "mnist-width-laptop",
        "mnist-width",
        ("mnist-width",),
        "laptop: 100 tasks of 2,000 examples, narrow networks, 8 runs",
        "Permuted MNIST at laptop scale",
    ),
    Entry(
        "mnist-methods-laptop",
        "mnist-methods",
        ("mnist-methods",),
        "laptop: 80 tasks of 1,000 examples, 20 units per layer, 30 runs",
        "Permuted MNIST at laptop scale",
        (
            Picture("mnist-methods-laptop", ("Online accuracy of seven methods",)),
            Picture("mnist-methods-laptop-networks", (CORRELATES,)),
        ),
    ),
    Entry(
        "mnist-sensitivity-laptop",
        "mnist-sensitivity",
        ("mnist-sensitivity",),
        "laptop: 40 tasks of 1,000 examples, narrow networks, 30 runs",
        "Permuted MNIST at laptop scale",
    ),
    Entry(
        "imagenet-stand-in",
        "imagenet-stand-in",
        ("imagenet-bp", "imagenet-methods"),
        "139 tasks of 100 epochs, 200 classes, the paper's network, 5 runs",
        "Continual ImageNet with 200 classes",
        (Picture("imagenet-stand-in-bp", ("Backpropagation on Continual ImageNet, 200 classes",)),),
        tasks=139,
    ),
    Entry(
        "imagenet-stand-in-97",
        "imagenet-stand-in",
        ("imagenet-bp", "imagenet-methods"),
        "97 tasks of 100 epochs, 200 classes, the paper's network, 5 runs",
        "Continual ImageNet with 200 classes",
        (Picture("imagenet-stand-in-97-methods", ("Methods on Continual ImageNet, 200 classes",)),),
        folder="imagenet-stand-in",
        tasks=97,
    ),
    Entry(
        "imagenet-stand-in-67",
        "imagenet-stand-in",
        ("imagenet-bp", "imagenet-methods"),
        "67 tasks of 100 epochs, 200 classes, the paper's network, 5 runs",
        "Continual ImageNet with 200 classes",
        (Picture("imagenet-stand-in-67-methods", ("Methods on Continual ImageNet, 200 classes",)),),
        folder="imagenet-stand-in",
        tasks=67,
    ),
    Entry(
        "imagenet-methods-laptop",
        "imagenet-methods",
        ("imagenet-methods",),
        "laptop: 100 tasks of 100 updates, 9 runs",
        "Continual ImageNet at laptop scale",
        (Picture("imagenet-methods-laptop", ("Continual ImageNet",)),),
    ),
    Entry(
        "imagenet-sweep-laptop",
        "imagenet-sweep",
        ("imagenet-sweep",),
        "laptop: 50 tasks of 100 updates, 3 to 5 runs",
        "Continual ImageNet at laptop scale",
        (
            Picture("imagenet-sweep-laptop-settings", ("Every setting",)),
            Picture("imagenet-sweep-laptop-best", ("The best setting of each method",)),
        ),
    ),
    Entry(
        "ant-methods-laptop",
        "ant-methods",
        ("ant-methods",),
        "laptop: 10 frictions of 200,000 steps, 3 runs",
        "Slippery Ant at laptop scale",
        (
            Picture("ant-methods-laptop-return", ("Return over time",)),
            Picture("ant-methods-laptop-tasks", ("Return of each task",)),
            Picture("ant-methods-laptop-networks", ("What becomes of the networks",)),
        ),
    ),
)

# Estimates from docs/speed.md: 14 us per run-update for 784-2000x3-10 on one H200 (Adam 69), so that 30 runs of
# 800 tasks are 5.7 hours; 147 us for the convolutional network; 0.4 to 0.8 million updates of shrink and perturb a
# second and core in regression; 1,200 to 1,600 steps of PPO.
NEEDS = {
    "scr-activations": "`neoteny run scr-activations --scale paper`: 4,200 runs, 4 minutes on two cores.",
    "scr-cbp": "`neoteny run scr-cbp --scale paper`: 13,020 runs and 70 or 370 more of each best setting. Shrink and "
    "perturb alone, 8,640 of these runs, takes 9 to 18 hours of one core, or five minutes of an H200.",
    "scr-utilities": "`neoteny run scr-utilities --scale paper`: 3,100 runs, 6 minutes on two cores.",
    "mnist-step-size": "`neoteny run mnist-step-size --scale paper`: 90 runs of 48 million updates with 2,000 units "
    "per layer, about 17 hours on one H200.",
    "mnist-width": "`neoteny run mnist-width --scale paper`: 30 runs each with 100, 1,000 and 10,000 units per layer; "
    "the widest have 208 million weights each, and 270 million updates of them are days on one H200. At laptop scale: "
    "minutes on two cores.",
    "mnist-change-rate": "`neoteny run mnist-change-rate --scale paper`: 90 runs of 48 million updates with 2,000 "
    "units per layer, about 17 hours on one H200.",
    "mnist-methods": "`neoteny run mnist-methods --scale paper`: 210 runs of 48 million updates with 2,000 units "
    "per layer, about 62 hours on one H200: 5.7 for each method, 28 for Adam.",
    "mnist-sensitivity": "`neoteny run mnist-sensitivity --scale paper`: 249 runs of 48 million updates with 2,000 "
    "units per layer, about 70 hours on one H200. With 100 units per layer, the other settings of shrink and perturb "
    "and of Adam: `neoteny run hundred-units`, half an hour of an H200 more than was spent.",
    "imagenet-bp": "`neoteny run imagenet-bp --scale paper`: 1,000 classes of 700 images and 2,000 tasks of 3,000 "
    "updates; 240 runs, about 40 hours on one H200 for the convolutional networks.",
    "imagenet-methods": "`neoteny run imagenet-methods --scale paper`: 1,000 classes of 700 images and 5,000 tasks of "
    "3,000 updates; 270 runs, about a week on one H200.",
    "imagenet-sweep": "`neoteny run imagenet-sweep --scale paper`: 640 runs of 15 million updates and 20 more of each "
    "best setting, about 17 days on one H200.",
    "ant-methods": "`neoteny run ant-methods --scale paper`: 400 runs of 100 million steps, about 330 days of one "
    "core. At laptop scale: 12 runs of 2 million steps, five hours of one core.",
    "ant-utilities": "`neoteny run ant-utilities --scale paper`: 300 runs of 100 million steps, about 250 days of one "
    "core. At laptop scale: 9 runs of 2 million steps, some four hours of one core.",
    "ant-sweep": "`neoteny run ant-sweep --scale paper`: 230 runs of 100 million steps, about 190 days of one core. At "
    "laptop scale: 30 runs of 1 million steps, five to seven hours of one core.",
}
"""For each experiment of the suite, what it takes to test the claims that are not tested yet."""
