"""What all experiments share: one value per scale, texts written as lists, and what continual backpropagation assumes.

Scales are smoke (seconds), laptop (minutes) and paper (the paper's own numbers).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from neoteny.report.claim import Unchecked
from neoteny.suite.sweep import SCALES, Assumption
from neoteny.text import nearest

if TYPE_CHECKING:
    import pandas as pd

Value = TypeVar("Value")


def assume(text: str) -> tuple[Assumption, ...]:
    """Assumptions written as a list: one "- what | value | reason" each, over any number of lines.

    Example:
        >>> assume("- width | 30 | narrow networks lose plasticity sooner")
        (Assumption(what='width', value='30', reason='narrow networks lose plasticity sooner'),)
    """
    return tuple(Assumption(*entry) for entry in split_entries(text))


def not_checked(text: str) -> tuple[Unchecked, ...]:
    """What results cannot test, written as a list: one "- statement | source | reason" each."""
    return tuple(Unchecked(*entry) for entry in split_entries(text))


def split_entries(text: str) -> list[list[str]]:
    """The parts of each entry of a list, "- first | second | ..."."""
    return [" ".join(entry.split()).split(" | ") for entry in f"\n{text}".split("\n- ")[1:]]


CBP_COUNT, CBP_DECAY, CBP_MATURITY = assume("""
- what continual backpropagation counts and makes up for | the replacement rate is a share of a layer's mature units;
  when a unit leaves, the mean of what it passed on goes into the next layer's biases | Algorithm 1 multiplies the rate
  with all units of the layer, which differs where a large rate keeps many of them immature; the correction of the
  biases is in the text of Section 6, is not a step of Algorithm 1, and the paper does not say whether its curves have
  it
- decay rate of the utilities | 0.99 | an example in the paper's algorithms, which name no value for any of its
  problems
- maturity threshold and decay rate of continual backpropagation | 100 and 0.99 | examples in Algorithm 1; the paper
  sets 100 on Continual ImageNet only, and Appendix E has 1000 as the example for Adam
""")


def pick(scale: str, smoke: Value, laptop: Value, paper: Value) -> Value:
    """The value for a scale.

    Example:
        >>> pick("laptop", smoke=2, laptop=20, paper=100)
        20
    """
    if scale not in SCALES:
        raise ValueError(f"scale must be one of {', '.join(SCALES)}; got {scale!r}.{nearest(str(scale), list(SCALES))}")
    return {"smoke": smoke, "laptop": laptop, "paper": paper}[scale]


def scale_of(frame: pd.DataFrame) -> str:
    """The scale of a frame's runs; the paper's where the frame has none, or several."""
    present = frame["scale"].unique().tolist() if "scale" in frame.columns else []
    return present[0] if len(present) == 1 and present[0] in SCALES else "paper"
