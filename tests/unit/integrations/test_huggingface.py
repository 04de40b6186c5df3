"""The Hugging Face callback and accelerate: a plain training script, stopped and resumed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import neoteny

transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed (the extra huggingface)")
pytest.importorskip("accelerate", reason="accelerate is not installed (the extra huggingface)")

from neoteny.integrations.huggingface import Plasticity  # noqa: E402

FAST = neoteny.ContinualBackprop(replacement_rate=0.05, maturity_threshold=4)
pytestmark = pytest.mark.filterwarnings("ignore")


def build() -> Any:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, num_labels=2
    )
    return transformers.BertForSequenceClassification(config)


def data() -> list[dict[str, Any]]:
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, 50, (96, 8), generator=draw)
    return [{"input_ids": each, "labels": int(each[0] > 25), "attention_mask": torch.ones(8)} for each in tokens]


def fit(folder: Path, model: Any, callback: Plasticity, steps: int, resume: Path | None = None) -> Any:
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=8,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        save_steps=12,
        logging_steps=6,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        seed=3,
    )
    trainer = transformers.Trainer(model, arguments, train_dataset=data(), callbacks=[callback])
    trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    return trainer


@pytest.mark.parametrize("seed", [1, None])
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path: Path, seed: int | None) -> None:
    whole, callback = build(), Plasticity(FAST, seed=seed)
    trainer = fit(tmp_path / "whole", whole, callback, 24)
    logged = [entry["plasticity/replaced"] for entry in trainer.state.log_history if "plasticity/replaced" in entry]
    assert logged[-1] > 20
    assert not any(module._forward_pre_hooks for module in whole.modules())

    checkpoint = tmp_path / "whole" / "checkpoint-12"
    resumed, again = build(), Plasticity(FAST, seed=seed, resume_from=checkpoint)
    fit(tmp_path / "again", resumed, again, 24, resume=checkpoint)
    for name, parameter in whole.named_parameters():
        assert torch.equal(parameter, resumed.get_parameter(name)), name
    assert again.replaced == callback.replaced


def test_a_checkpoint_without_its_state_is_refused(tmp_path: Path) -> None:
    fit(tmp_path / "first", build(), Plasticity(FAST, seed=1), 12)
    checkpoint = tmp_path / "first" / "checkpoint-12"
    (checkpoint / "plasticity.pt").unlink()
    with pytest.raises(FileNotFoundError, match=r"no .*plasticity\.pt"):
        fit(tmp_path / "first", build(), Plasticity(FAST, seed=1), 24, resume=checkpoint)
    shutil.rmtree(tmp_path)


def test_accelerate_saves_and_restores_an_attachment(tmp_path: Path) -> None:
    import accelerate

    def prepare() -> tuple[Any, nn.Module, Any, neoteny.Attachment]:
        torch.manual_seed(0)
        accelerator = accelerate.Accelerator(cpu=True)
        net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
        model, optimizer = accelerator.prepare(net, torch.optim.Adam(net.parameters(), lr=0.01))
        plastic = neoteny.attach(model, optimizer, FAST, example=torch.zeros(2, 6), seed=1, auto=True)
        accelerator.register_for_checkpointing(plastic)
        return accelerator, model, optimizer, plastic

    def train(accelerator: Any, model: nn.Module, optimizer: Any, updates: range) -> None:
        for update in updates:
            x = torch.randn(8, 6, generator=torch.Generator().manual_seed(update))
            with accelerator.accumulate(model):
                accelerator.backward((model(x) - x[:, :1]).square().mean())
                optimizer.step()
                optimizer.zero_grad()

    accelerator, model, optimizer, plastic = prepare()
    train(accelerator, model, optimizer, range(40))
    accelerator.save_state(str(tmp_path))
    train(accelerator, model, optimizer, range(40, 80))
    accelerator, resumed, again, other = prepare()
    accelerator.load_state(str(tmp_path))
    train(accelerator, resumed, again, range(40, 80))
    assert other.replaced == plastic.replaced
    assert sum(plastic.replaced.values()) > 40
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, resumed.get_parameter(name)), name
