"""The Lightning callback: a plain training script, killed and resumed, fitted twice, and refused with the reason."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import neoteny

pytest.importorskip("lightning", reason="lightning is not installed (the extra lightning)")
import lightning.pytorch as pl
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

from neoteny.integrations.lightning import Plasticity

FAST = neoteny.ContinualBackprop(replacement_rate=0.05, maturity_threshold=5)


class Regression(pl.LightningModule):
    """A LightningModule as anybody writes it."""

    def __init__(self, whole: bool = True) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
        self.whole = whole

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        return nn.functional.mse_loss(self(x) if self.whole else self.net(x), y)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.log("loss", nn.functional.mse_loss(self(x), y))

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.01)


def loader() -> DataLoader[Any]:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(160, 6, generator=draw)
    return DataLoader(TensorDataset(x, x[:, :1].sin()), batch_size=8)


def fit(folder: Path, callback: Plasticity, model: Regression, steps: int, **options: Any) -> pl.Trainer:
    checkpoint = ModelCheckpoint(folder, every_n_train_steps=20, save_top_k=-1, filename="{step}")
    trainer = pl.Trainer(
        accelerator="cpu",
        max_steps=steps,
        callbacks=[callback, checkpoint],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, loader(), loader(), **options)
    return trainer


def build(whole: bool = True) -> Regression:
    torch.manual_seed(0)
    return Regression(whole)


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    import logging

    for name in ("lightning.pytorch", "lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)


pytestmark = pytest.mark.filterwarnings("ignore")


def test_a_resumed_run_is_the_uninterrupted_one(tmp_path: Path) -> None:
    whole, callback = build(), Plasticity(FAST, seed=1)
    trainer = fit(tmp_path / "whole", callback, whole, 60)
    total = trainer.callback_metrics["plasticity/replaced"]
    assert total > 30

    fit(tmp_path / "first", Plasticity(FAST, seed=1), build(), 40)  # two epochs: in between it begins one again
    resumed, again = build(), Plasticity(FAST, seed=1)
    trainer = fit(tmp_path / "second", again, resumed, 60, ckpt_path=tmp_path / "first" / "step=40.ckpt")
    assert trainer.callback_metrics["plasticity/replaced"] == total
    for name, parameter in whole.named_parameters():
        assert torch.equal(parameter, resumed.get_parameter(name)), name


def test_the_same_numbers_as_in_a_hand_written_loop(tmp_path: Path) -> None:
    model, twin = build(), build()
    fit(tmp_path, Plasticity(FAST, seed=1), model, 40)
    optimizer = torch.optim.Adam(twin.parameters(), lr=0.01)
    plastic = neoteny.attach(twin, optimizer, FAST, example=torch.zeros(2, 6), seed=1)
    twin.train()
    for x, y in [batch for _ in range(2) for batch in loader()]:
        optimizer.zero_grad()
        nn.functional.mse_loss(twin(x), y).backward()
        optimizer.step()
        plastic.step()
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, twin.get_parameter(name)), name


def test_a_second_fit_goes_on_and_leaves_no_hook_of_the_first(tmp_path: Path) -> None:
    model, callback = build(), Plasticity(FAST, seed=1)
    fit(tmp_path / "one", callback, model, 40)
    first = callback.state_dict()
    assert sum(int(group["schedule"]["step"]) for group in first["states"][0].values()) == 80
    assert not any(module._forward_pre_hooks for module in model.modules())
    fit(tmp_path / "two", callback, model, 40)
    assert sum(int(group["schedule"]["step"]) for group in callback.state_dict()["states"][0].values()) == 160
    fit(tmp_path / "other", callback, build(), 20)  # another model begins from nothing
    assert sum(int(group["schedule"]["step"]) for group in callback.state_dict()["states"][0].values()) == 40


def test_a_part_that_is_called_by_itself_is_named(tmp_path: Path) -> None:
    callback = Plasticity(FAST, seed=1, module="net")
    trainer = fit(tmp_path / "part", callback, build(whole=False), 40)
    assert trainer.callback_metrics["plasticity/replaced"] > 15
    with pytest.raises(RuntimeError, match='module="net"'):
        fit(tmp_path / "whole", Plasticity(FAST), build(whole=False), 5)


class Gan(pl.LightningModule):
    """Two networks that take turns, each with an optimizer; the second makes two updates per update of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.maker = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 6))
        self.judge = nn.Sequential(nn.Linear(6, 16), nn.LeakyReLU(), nn.Linear(16, 1))

    def training_step(self, batch: Any, batch_idx: int) -> None:
        first, second = self.optimizers()  # pyright: ignore[reportGeneralTypeIssues]
        noise = torch.randn(len(batch[0]), 4)
        self.toggle_optimizer(first)
        self.update(first, -self.judge(self.maker(noise)).mean())
        self.untoggle_optimizer(first)
        self.toggle_optimizer(second)
        for _ in range(2):
            self.update(second, (self.judge(self.maker(noise).detach()) - self.judge(batch[0])).mean())
        self.untoggle_optimizer(second)

    def update(self, optimizer: Any, loss: Tensor) -> None:
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()

    def configure_optimizers(self) -> Any:
        return [torch.optim.Adam(part.parameters(), 1e-3) for part in (self.maker, self.judge)], []


def test_each_network_of_a_gan_has_a_callback_that_counts_the_updates_of_its_own_optimizer(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, parts = Gan(), ("maker", "judge")
    callbacks = [Plasticity(FAST, module=part, seed=1) for part in parts]
    ages: dict[str, int] = {}

    class Look(pl.Callback):
        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            for part, each in zip(parts, callbacks, strict=True):
                ages[part] = each.plastic.state_dict()["states"][0]["0"]["schedule"]["step"]
            assert {f"plasticity/{part}/replaced" for part in parts} <= set(trainer.logged_metrics)

    checkpoint = ModelCheckpoint(tmp_path, save_last=True)
    options: dict[str, Any] = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False}
    trainer = pl.Trainer(max_epochs=1, callbacks=[*callbacks, Look(), checkpoint], **options)
    trainer.fit(model, loader())
    assert ages == {"maker": 20, "judge": 40}
    assert all(sum(each.replaced.values()) > 5 for each in callbacks)
    saved = torch.load(tmp_path / "last.ckpt", weights_only=False)["callbacks"]
    assert [saved[each.state_key]["states"][0]["0"]["schedule"]["step"] for each in callbacks] == [20, 40]


def test_the_optimizers_of_a_lightning_module_can_be_attached_by_hand(tmp_path: Path) -> None:
    class ByHand(Regression):
        def on_fit_start(self) -> None:
            example = torch.zeros(2, 6)
            self.plastic: Any = neoteny.attach(self.net, self.optimizers(), FAST, example=example, seed=1, auto=True)  # pyright: ignore[reportArgumentType]

    torch.manual_seed(0)
    model = ByHand()
    trainer = pl.Trainer(
        accelerator="cpu", max_steps=40, logger=False, enable_progress_bar=False, enable_checkpointing=False
    )
    trainer.fit(model, loader())
    assert sum(model.plastic.replaced.values()) > 15
    copy.deepcopy(model)


def test_wrong_options_are_refused_at_once() -> None:
    with pytest.raises(TypeError, match="auto is chosen by the callback"):
        Plasticity(FAST, auto=True)
    with pytest.raises(ValueError, match="at least one method"):
        Plasticity()


def test_a_monitor_runs_inside_a_fit_and_writes_to_its_logger(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path)
    model = build()
    with neoteny.Monitor(model, 10, examples=16, to=logger) as monitor:
        trainer = pl.Trainer(
            accelerator="cpu", max_steps=25, logger=False, enable_progress_bar=False, enable_checkpointing=False
        )
        trainer.fit(model, loader())
    logger.save()
    assert [sample.step for sample in monitor.samples] == [1, 11, 21]
    (written,) = tmp_path.rglob("metrics.csv")
    header, *rows = written.read_text().splitlines()
    assert "plasticity/net.0/effective_rank" in header
    assert len(rows) == 3
