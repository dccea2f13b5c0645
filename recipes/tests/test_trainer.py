"""The trainer: gaps, invariance, and leaving alone what there is nothing to learn from."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from dressage_recipes.errors import StoppedError, UsageError
from dressage_recipes.local.trainer import GrpoTrainer, TrainerConfig, _Sums
from dressage_segments import Batch, BranchKind, FailureClass, Sample, Weighting, token_weights
from dressage_segments.denominators import DeadGroups
from transformers import GPT2Config, GPT2LMHeadModel, Qwen3Config, Qwen3ForCausalLM

VOCAB = 40


@pytest.fixture
def model() -> Qwen3ForCausalLM:
    torch.manual_seed(3)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=128,
        initializer_range=0.2,
    )
    return Qwen3ForCausalLM(config).float().eval()


def sample(rng: np.random.Generator, rollout: str, group: str, advantage: float, length: int = 20) -> Sample:
    mask = (rng.random(length) < 0.5).astype(np.uint8)
    mask[0] = 0
    mask[-1] = 1
    ids = rng.integers(0, VOCAB, length).astype(np.int32)
    return Sample(
        session_id=rollout,
        instance_id=group,
        group_id=group,
        rollout_id=rollout,
        segment_index=0,
        anchor=True,
        kind=BranchKind.MAIN,
        token_ids=ids,
        loss_mask=mask,
        logprobs=np.where(mask, -1.5, 0).astype(np.float32),
        versions=np.where(mask, 0, -1).astype(np.int32),
        advantage=advantage,
        reward=1.0,
        failure_class=FailureClass.COMPLETED,
    )


def batch(samples: list[Sample]) -> Batch:
    tokens = sum(s.trained_tokens for s in samples)
    return Batch(tuple(samples), {}, {}, tokens, tokens, {})


def rows(count: int = 6) -> list[Sample]:
    rng = np.random.default_rng(0)
    return [sample(rng, f"r{i}", f"g{i % 2}", [1.0, -0.5, 0.3][i % 3], 12 + 3 * i) for i in range(count)]


def gradient(model: Qwen3ForCausalLM, samples: list[Sample], micro_tokens: int) -> torch.Tensor:
    model.zero_grad()
    trainer = GrpoTrainer(model, TrainerConfig(micro_tokens=micro_tokens))
    weights = token_weights(samples, Weighting.PROMPT, dead_groups=DeadGroups.COUNT).per_sample
    trainer.accumulate(samples, weights, _Sums(), gap=True)
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def test_p4_the_gradient_does_not_depend_on_the_micro_batches(model: Qwen3ForCausalLM) -> None:
    whole = gradient(model, rows(), 1 << 20)
    for micro_tokens in (1, 40, 90):
        torch.testing.assert_close(gradient(model, rows(), micro_tokens), whole, rtol=1e-4, atol=1e-6)


def test_p4_the_gradient_does_not_depend_on_the_cut_into_segments(model: Qwen3ForCausalLM) -> None:
    """A segment that repeats another's context with mask 0 and trains the rest of its tokens."""
    samples = rows()
    whole = gradient(model, samples, 1 << 20)
    cut: list[Sample] = []
    for row in samples:
        half = len(row.token_ids) // 2
        first, second = row.loss_mask.copy(), row.loss_mask.copy()
        first[half:] = 0
        second[:half] = 0
        cut.append(replace(row, loss_mask=first, token_ids=row.token_ids))
        cut.append(replace(row, loss_mask=second, segment_index=1, anchor=False))
    torch.testing.assert_close(gradient(model, cut, 64), whole, rtol=1e-4, atol=1e-6)


def test_what_lies_under_a_mask_of_0_changes_nothing(model: Qwen3ForCausalLM) -> None:
    samples = rows()
    spoiled = [
        replace(s, logprobs=np.where(s.loss_mask, s.logprobs, -99).astype(np.float32)) for s in samples
    ]
    torch.testing.assert_close(gradient(model, spoiled, 64), gradient(model, samples, 64), rtol=0, atol=0)


def test_own_logprobs_show_no_gap(model: Qwen3ForCausalLM) -> None:
    samples = rows()
    trainer = GrpoTrainer(model, TrainerConfig(lr=1e-3))
    behaviour = []
    for row, values in zip(samples, trainer.logprobs(samples), strict=True):
        logprobs = np.zeros(len(row.token_ids), np.float32)
        logprobs[row.loss_mask == 1] = values
        behaviour.append(replace(row, logprobs=logprobs))
    stats = trainer.step(batch(behaviour))
    assert stats.stepped
    assert stats.logprob_gap_max < 1e-5
    assert stats.clip_fraction == 0
    assert stats.tokens == sum(s.trained_tokens for s in samples)


def test_a_step_raises_the_probability_of_what_was_rewarded(model: Qwen3ForCausalLM) -> None:
    samples = [replace(s, advantage=1.0) for s in rows()]
    trainer = GrpoTrainer(model, TrainerConfig(lr=1e-3, clip_high=1e9))
    before = np.concatenate(trainer.logprobs(samples)).sum()
    trainer.step(batch(samples))
    assert np.concatenate(trainer.logprobs(samples)).sum() > before


@pytest.mark.parametrize("kind", ["masked", "no_advantage", "empty"])
def test_c42_nothing_to_learn_leaves_weights_and_optimiser_alone(model: Qwen3ForCausalLM, kind: str) -> None:
    samples = rows()
    trainer = GrpoTrainer(model, TrainerConfig(lr=1e-2))
    trainer.step(batch(samples))
    before = [p.detach().clone() for p in model.parameters()]
    if kind == "masked":
        samples = [replace(s, loss_mask=np.zeros_like(s.loss_mask)) for s in samples]
    elif kind == "no_advantage":
        samples = [replace(s, advantage=0.0) for s in samples]
    else:
        samples = []
    stats = trainer.step(batch(samples))
    assert not stats.stepped
    assert stats.loss == 0
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_only_the_last_layers_move_through_float32_masters(model: Qwen3ForCausalLM) -> None:
    model = model.bfloat16()
    trainer = GrpoTrainer(model, TrainerConfig(lr=1e-2, trainable_layers=1))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    trainer.step(batch(rows()))
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert moved
    assert all(name.startswith("model.layers.2.") for name in moved)
    assert set(trainer.changed_weights()) >= moved


def test_a_model_with_fewer_layers_is_trained_in_all_of_them(model: Qwen3ForCausalLM) -> None:
    GrpoTrainer(model, TrainerConfig(trainable_layers=9))
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert trained == {name for name, _ in model.named_parameters() if name.startswith("model.layers.")}


def test_the_layers_of_a_family_that_names_them_otherwise_are_found() -> None:
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCAB, n_positions=64, n_embd=8, n_layer=3, n_head=2))
    GrpoTrainer(model, TrainerConfig(trainable_layers=2))
    trained = {name.split(".")[2] for name, p in model.named_parameters() if p.requires_grad}
    assert trained == {"1", "2"}


def test_a_model_without_a_list_of_layers_is_refused_by_the_fields_name(model: Qwen3ForCausalLM) -> None:
    model.model.layers = torch.nn.Sequential(*model.model.layers)
    with pytest.raises(UsageError, match=r"training\.trainable_layers is 2"):
        GrpoTrainer(model, TrainerConfig(trainable_layers=2))


def test_a_step_that_is_asked_to_stop_ends_at_the_next_micro_batch_and_changes_nothing(
    model: Qwen3ForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, done = threading.Event(), []
    trainer = GrpoTrainer(model, TrainerConfig(lr=1e-2, micro_tokens=1), stop=stop)
    backward = GrpoTrainer._backward

    def counted(self: GrpoTrainer, *arguments: object) -> None:
        backward(self, *arguments)
        done.append(1)
        stop.set()

    monkeypatch.setattr(GrpoTrainer, "_backward", counted)
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(StoppedError):
        trainer.step(batch(rows()))
    assert len(done) == 1
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(p.grad is None for p in model.parameters())
