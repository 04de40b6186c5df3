"""Adapters of peft: their units are found, drawn and cleared as in a fresh adapter, and the base model stays."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import neoteny
from neoteny.layers.regions import ChosenUnits
from neoteny.units.reset import reset_units

transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed (the extra huggingface)")
peft: Any = pytest.importorskip("peft", reason="peft is not installed (pip install peft)")

pytestmark = pytest.mark.filterwarnings("ignore")
TOKENS = {"input_ids": torch.randint(50, (2, 6), generator=torch.Generator().manual_seed(0))}


def llama(layers: int = 1, **options: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=16, intermediate_size=32, num_hidden_layers=layers, num_attention_heads=2
    )
    targets = peft.LoraConfig(r=4, target_modules=["v_proj", "up_proj"], lora_dropout=0.1, **options)
    return peft.get_peft_model(transformers.LlamaForCausalLM(config).double(), targets)


def attached(model: Any, rate: float = 0.0, **options: Any) -> tuple[Any, torch.optim.Optimizer]:
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-2)
    method = neoteny.ContinualBackprop(rate, maturity_threshold=3)
    return neoteny.attach(model, optimizer, method, example=TOKENS, seed=1, **options), optimizer


def train(model: Any, optimizer: torch.optim.Optimizer, plastic: Any, steps: int) -> None:
    for _ in range(steps):
        model(**TOKENS).logits.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        plastic.step()


def test_a_replaced_unit_of_an_adapter_is_a_fresh_one_and_all_else_stays() -> None:
    model = llama().double()
    plastic, optimizer = attached(model)
    assert len(plastic.view.groups) == 2
    assert all("lora_A" in group.name and group.units == 4 for group in plastic.view.groups)
    assert "torch's own (reset_parameters); as the weights were drawn" in str(plastic)
    train(model, optimizer, plastic, 3)
    group = plastic.view.groups[1]
    into, out = group.producers[0].weight, group.consumers[0].weight
    before = {name: each.detach().clone() for name, each in model.named_parameters()}
    moments = {
        name: optimizer.state[each]["exp_avg"].clone() for name, each in model.named_parameters() if each.requires_grad
    }
    assert bool(before[out].abs().min() > 0)
    reset_units(plastic.view, group, ChosenUnits((), torch.tensor([2])), step=5)
    for name, each in model.named_parameters():
        rows = torch.arange(4) != 2
        kept = rows[:, None] if name == into else rows[None] if name == out else torch.tensor(True)
        kept = kept.expand(each.shape)
        assert torch.equal(each[kept], before[name][kept]), name
        if each.requires_grad:
            assert torch.equal(optimizer.state[each]["exp_avg"], torch.where(kept, moments[name], 0.0)), name
    assert bool((model.get_parameter(out)[:, 2] == 0).all())
    new = model.get_parameter(into)[2]
    assert 0 < float(new.abs().max()) <= 16**-0.5


def test_frozen_layers_take_one_line_per_kind() -> None:
    wiring = neoteny.trace(llama(layers=2), TOKENS)
    said = str(wiring)
    assert said.count("k_proj") == 1
    assert "layers.*.self_attn.k_proj (2 layers)" in said
    assert sum("k_proj" in name for name in wiring.left_out) == 2


def test_layers_that_are_saved_beside_adapters_and_other_adapters() -> None:
    model = llama(modules_to_save=["gate_proj", "down_proj", "lm_head"])
    model.add_adapter("other", peft.LoraConfig(r=2, target_modules=["v_proj"]))
    plastic, optimizer = attached(model, rate=0.2)
    left_out = plastic.wiring.left_out
    idle = [name for name, reason in left_out.items() if "runs when another adapter is chosen" in reason]
    assert any(name.endswith("lm_head.original_module") for name in idle)
    assert any(name.endswith("v_proj.lora_A.other") for name in idle)
    train(model, optimizer, plastic, 8)
    assert min(plastic.replaced.values()) > 0
    model.set_adapter("other")
    optimizer.add_param_group({"params": [each for name, each in model.named_parameters() if ".other." in name]})
    with pytest.raises(ValueError, match="another adapter was chosen"):
        train(model, optimizer, plastic, 1)
    plastic.detach()
    again, optimizer = attached(model, rate=0.2)
    assert all(name.endswith("lora_A.other") for name in again.replaced)
    train(model, optimizer, again, 8)
    assert min(again.replaced.values()) > 0


def test_a_trained_adapter_is_drawn_as_peft_draws_it() -> None:
    model = llama()
    with torch.no_grad():
        for name, each in model.named_parameters():
            if each.requires_grad:
                each.normal_(0.0, 3.0, generator=torch.Generator().manual_seed(len(name)))
    plastic, _ = attached(model, trained=True)
    laws = {law.initial.name for law in plastic.view.laws.values()}
    assert laws == {"default"}
