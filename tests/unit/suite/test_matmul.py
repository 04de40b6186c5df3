"""What float32 numbers are multiplied in on a GPU: part of a run's identity, and refused where it has no effect."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from neoteny.methods import SGD, ContinualBackprop
from neoteny.nets import ConvNet
from neoteny.problems import ContinualImageNet
from neoteny.suite.configuration import configure, describe
from neoteny.suite.environment import check_matmul, multiplying, set_deterministic
from neoteny.suite.stacks import runs_of, stacks_of
from neoteny.suite.sweep import Setting, Sweep, network
from neoteny.suite.training import Training
from support.small_sweeps import NET, make_sweep

BP = Setting("BP", NET, (SGD(0.01),))
IMAGES = ContinualImageNet(tasks=2, source="synthetic", train_images=40, test_images=10, batch_size=20, epochs=10)


def test_runs_without_a_choice_keep_their_ids_and_a_choice_gives_others() -> None:
    sweep = make_sweep(BP)
    assert "matmul" not in configure(sweep, BP, 0, "reference")
    assert "matmul" not in describe(sweep)
    ids = set()
    for matmul in (None, "float32", "tf32"):
        chosen = dataclasses.replace(sweep, matmul=matmul)
        assert configure(chosen, BP, 0, "reference").get("matmul") == matmul
        assert describe(chosen).get("matmul") == matmul
        ids |= {run.run_id for run in runs_of(chosen, chosen.settings, "reference")}
    assert len(ids) == 3 * sweep.runs


def test_it_is_refused_where_it_has_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = dataclasses.replace(make_sweep(BP), matmul="tf32")
    with pytest.raises(
        ValueError, match="matmul='tf32' is of products on a CUDA device, and this is cpu; leave it out"
    ):
        check_matmul(sweep, torch.device("cpu"), "cpu")
    monkeypatch.setattr("neoteny.suite.configuration._missing", lambda kernel: "")
    with pytest.raises(ValueError, match="Setting 'BP': matmul='tf32' has no effect in the CUDA kernel"):
        check_matmul(sweep, torch.device("cuda"), "cuda")
    check_matmul(sweep, torch.device("cuda"), "reference")
    check_matmul(make_sweep(BP), torch.device("cpu"), "cpu")
    with pytest.raises(ValueError, match="matmul='tf32' has no effect on numbers of float64"):
        dataclasses.replace(sweep, dtype="float64")


@pytest.mark.parametrize("matmul", ["tf32", "float32", None])
def test_products_are_as_asked_and_then_as_before(matmul: str | None) -> None:
    def flags() -> tuple[bool, bool]:
        return bool(torch.backends.cuda.matmul.allow_tf32), bool(torch.backends.cudnn.allow_tf32)

    before = flags()
    with multiplying(matmul):
        assert flags() == (before if matmul is None else (matmul == "tf32",) * 2)
    assert flags() == before


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_convolutions_take_it_and_measures_wait_for_nothing() -> None:
    set_deterministic()
    tables = {}
    methods = (SGD(0.01, momentum=0.9), ContinualBackprop(0.01, maturity_threshold=3))
    for matmul in ("float32", "tf32", "float32"):
        setting = Setting("CBP", network(ConvNet), methods)
        sweep = Sweep(IMAGES, (setting,), runs=3, measures=("effective_rank",), probe_examples=20, matmul=matmul)
        (one,) = stacks_of(sweep, runs_of(sweep, sweep.settings, "cuda"), ())
        assert one.backend == "graphs"
        training = Training(one, IMAGES.open(), torch.device("cuda"))
        training.run(lambda: None)
        table = training.table()
        if matmul in tables:
            assert torch.equal(table["effective_rank"], tables[matmul]["effective_rank"])
        tables[matmul] = table
    ranks = [tables[matmul]["effective_rank"] for matmul in ("float32", "tf32")]
    assert not torch.equal(*ranks)
    torch.testing.assert_close(*ranks, rtol=0.1, atol=0.5)
