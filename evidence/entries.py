"""What was run for `docs/`: one entry a results folder, and what the claims that no folder speaks to would need.

`publish.py` reads this table. Its order matters: where several folders judge a claim, the first entry's verdict counts,
so the largest scale comes first.
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
    """One results folder and where it is spoken of.

    Args:
        name: of the folder, in `evidence/` and in `results/`.
        run: what `neoteny run` takes: an experiment's name, or a file of `examples/`.
        judges: the experiments of the suite to whose claims its own belong, by the claims' names.
        scale: in words, for tables.
        section: the heading of `docs/results.md`.
        pictures: what is drawn; empty for one picture of every group of charts, as the report draws them.
        options: of `neoteny run` beside --scale and --out.
    """

    name: str
    run: str
    judges: tuple[str, ...]
    scale: str
    section: str
    pictures: tuple[Picture, ...] = ()
    options: str = ""

    @property
    def own_file(self) -> bool:
        """Whether it is a file of `examples/` and no experiment of the suite."""
        return self.run.endswith(".py")


REGRESSION = "Slowly-changing regression"
MNIST = ("mnist-methods", "mnist-step-size", "mnist-sensitivity")
CORRELATES = "What changes in the networks"

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
    ),
    Entry(
        "scr-cbp-paper",
        "scr-cbp",
        ("scr-cbp",),
        "the paper's: 3 million examples, 30 runs and 70 more of the best",
        f"{REGRESSION} with continual backpropagation, at the paper's scale",
    ),
    Entry(
        "scr-utilities-paper",
        "scr-utilities",
        ("scr-utilities",),
        "the paper's: 3 million examples, 100 runs",
        f"{REGRESSION} with six utilities, at the paper's scale",
    ),
    Entry(
        "hundred-units",
        "examples/hundred_units.py",
        MNIST,
        "800 tasks, 100 units a layer, 8 runs",
        "Permuted MNIST with 100 units a layer: seven methods, 800 tasks",
        (
            Picture("hundred-units-accuracy", ("Online accuracy of seven methods",)),
            Picture("hundred-units-networks", (CORRELATES,)),
            Picture("hundred-units-step-sizes", ("Backpropagation at three step sizes",)),
            Picture("hundred-units-step-sizes-networks", ("What changes at three step sizes",)),
            Picture("hundred-units-settings", ("Settings of each method",)),
        ),
    ),
    Entry(
        "hundred-units-change",
        "examples/hundred_units_change.py",
        ("mnist-change-rate",),
        "48 million examples, 100 units a layer, 8 runs",
        "Permuted MNIST with 100 units a layer: how often the task changes",
    ),
    Entry(
        "two-thousand-units",
        "examples/two_thousand_units.py",
        MNIST,
        "100 tasks, the paper's 2,000 units a layer, 5 runs",
        "Permuted MNIST with the paper's network",
    ),
    Entry(
        "eight-hundred-tasks",
        "examples/eight_hundred_tasks.py",
        ("mnist-methods",),
        "800 tasks, 100 units a layer, 1 run",
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
        "mnist-step-size-laptop",
        "mnist-step-size",
        ("mnist-step-size",),
        "laptop: 200 tasks of 2,000 examples, narrow networks, 8 runs",
        "Permuted MNIST at laptop scale",
    ),
    Entry(
        "mnist-methods-laptop",
        "mnist-methods",
        ("mnist-methods",),
        "laptop: 80 tasks of 1,000 examples, 20 units a layer, 10 runs",
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
        "laptop: 40 tasks of 1,000 examples, narrow networks, 5 runs",
        "Permuted MNIST at laptop scale",
    ),
    Entry(
        "imagenet-stand-in",
        "examples/imagenet_stand_in.py",
        ("imagenet-bp", "imagenet-methods"),
        "80 tasks, 200 classes, the paper's network, 5 runs",
        "Continual ImageNet with 200 classes",
    ),
    Entry(
        "imagenet-bp-laptop",
        "imagenet-bp",
        ("imagenet-bp",),
        "laptop: 100 tasks of 100 updates, 5 runs",
        "Continual ImageNet at laptop scale",
    ),
    Entry(
        "imagenet-methods-laptop",
        "imagenet-methods",
        ("imagenet-methods",),
        "laptop: 100 tasks of 100 updates, 5 runs",
        "Continual ImageNet at laptop scale",
    ),
    Entry(
        "ant-methods-laptop",
        "ant-methods",
        ("ant-methods",),
        "laptop: 10 frictions of 200,000 steps, 3 runs",
        "Slippery Ant at laptop scale",
    ),
)

# Estimates from the speeds in README: 14 us a run-update for 784-2000x3-10 on one H200 (Adam 69), 147 us for the
# convolutional network, 1,650 steps of Continual PPO a second and core.
NEEDS = {
    "scr-activations": "`neoteny run scr-activations --scale paper`: 4,200 runs, 20 minutes on two cores.",
    "scr-cbp": "`neoteny run scr-cbp --scale paper`: 13,020 runs and 70 more of each best setting, some hours on two "
    "cores or minutes on a GPU.",
    "scr-utilities": "`neoteny run scr-utilities --scale paper`: 3,100 runs, about an hour on two cores.",
    "mnist-step-size": "`neoteny run mnist-step-size --scale paper`: 90 runs of 48 million updates with 2,000 units a "
    "layer, about 17 hours on one H200.",
    "mnist-width": "`neoteny run mnist-width --scale paper`: 30 runs each with 100, 1,000 and 10,000 units a layer; "
    "the widest have 208 million weights each, and 270 million updates of them are days on one H200. At laptop scale: "
    "minutes on two cores.",
    "mnist-change-rate": "`neoteny run mnist-change-rate --scale paper`: 90 runs of 48 million updates with 2,000 "
    "units a layer, about 17 hours on one H200.",
    "mnist-methods": "`neoteny run mnist-methods --scale paper`: 210 runs of 48 million updates with 2,000 units a "
    "layer, about 62 hours on one H200, half of them for Adam.",
    "mnist-sensitivity": "`neoteny run mnist-sensitivity --scale paper`: 249 runs of 48 million updates with 2,000 "
    "units a layer, about 70 hours on one H200.",
    "imagenet-bp": "`neoteny run imagenet-bp --scale paper`: 1,000 classes of 700 images and 2,000 tasks of 3,000 "
    "updates; 240 runs, about 40 hours on one H200 for the convolutional networks.",
    "imagenet-methods": "`neoteny run imagenet-methods --scale paper`: 1,000 classes of 700 images and 5,000 tasks of "
    "3,000 updates; 270 runs, about a week on one H200.",
    "imagenet-sweep": "`neoteny run imagenet-sweep --scale paper`: 640 runs of 15 million updates and 20 more of each "
    "best setting, about 17 days on one H200. At laptop scale: 30 runs, some minutes on a GPU.",
    "ant-methods": "`neoteny run ant-methods --scale paper`: 400 runs of 100 million steps, about 280 days of one "
    "core. At laptop scale: 12 runs of 2 million steps, four hours of one core.",
    "ant-utilities": "`neoteny run ant-utilities --scale paper`: 300 runs of 100 million steps, about 210 days of one "
    "core. At laptop scale: 9 runs of 2 million steps, three hours of one core.",
    "ant-sweep": "`neoteny run ant-sweep --scale paper`: 230 runs of 100 million steps, about 160 days of one core. At "
    "laptop scale: 30 runs of 1 million steps, five hours of one core.",
}
"""For each experiment of the suite, what it takes to test the claims that are not tested yet."""
