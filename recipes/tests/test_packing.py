"""Packing: shared beginnings are computed once, and nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from dressage_recipes.local.packing import batches, pack, trained
from dressage_segments import BranchKind, FailureClass, Sample
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

VOCAB = 16


@st.composite
def rows(draw: st.DrawFn) -> list[Sample]:
    """Rows over few ids, so that beginnings are shared in many ways, one row inside another too."""
    one = st.lists(st.integers(0, 2), min_size=2, max_size=9)
    made = []
    for number, ids in enumerate(draw(st.lists(one, min_size=1, max_size=7))):
        mask = draw(st.lists(st.integers(0, 1), min_size=len(ids), max_size=len(ids)))
        mask[0] = 0
        mask[draw(st.integers(1, len(ids) - 1))] = 1
        made.append(row(number, ids, mask))
    return made


def row(number: int, ids: list[int], mask: list[int]) -> Sample:
    count = len(ids)
    return Sample(
        session_id=f"s{number}",
        instance_id="i",
        group_id="g",
        rollout_id=f"r{number}",
        segment_index=0,
        anchor=True,
        kind=BranchKind.MAIN,
        token_ids=np.array(ids, np.int32),
        loss_mask=np.array(mask, np.uint8),
        logprobs=np.zeros(count, np.float32),
        versions=np.zeros(count, np.int32),
        advantage=1.0,
        reward=1.0,
        failure_class=FailureClass.COMPLETED,
    )


def beginnings(samples: list[Sample]) -> set[tuple[int, ...]]:
    """Every distinct beginning that some trained token's prediction depends on."""
    return {tuple(s.token_ids[: end + 1].tolist()) for s in samples for end in range(int(trained(s)[-1]))}


@settings(deadline=None)
@given(rows())
def test_each_beginning_is_computed_exactly_once_and_sees_its_own_ancestors_alone(
    samples: list[Sample],
) -> None:
    packed = pack(samples)
    seen = [tuple(packed.ids[np.flatnonzero(packed.visible[i])].tolist()) for i in range(len(packed.ids))]
    assert len(seen) == len(set(seen))
    assert set(seen) == beginnings(samples)
    assert packed.positions.tolist() == [len(ancestors) - 1 for ancestors in seen]


@settings(deadline=None)
@given(rows())
def test_each_trained_token_is_scored_by_the_beginning_before_it(samples: list[Sample]) -> None:
    packed = pack(samples)
    expected = [(tuple(s.token_ids[:t].tolist()), int(s.token_ids[t])) for s in samples for t in trained(s)]
    got = [
        (tuple(packed.ids[np.flatnonzero(packed.visible[packed.sources[k]])].tolist()), int(target))
        for k, target in zip(packed.column, packed.targets, strict=True)
    ]
    assert got == expected


@settings(deadline=None)
@given(rows(), st.integers(1, 40))
def test_batches_hold_every_row_once_and_keep_to_their_size(samples: list[Sample], tokens: int) -> None:
    parts = list(batches(samples, tokens))
    assert sorted(index for part in parts for index in part) == list(range(len(samples)))
    for part in parts:
        assert len(part) == 1 or len(pack([samples[i] for i in part]).ids) <= tokens


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=24,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=1,
        max_position_embeddings=64,
        initializer_range=0.5,
    )
    return LlamaForCausalLM(config).float().eval()


def alone(model: LlamaForCausalLM, sample: Sample) -> torch.Tensor:
    """Logprobs of one row's trained tokens, with nothing packed and no mask but the model's own."""
    ids = torch.from_numpy(sample.token_ids).long().unsqueeze(0)
    logps = model(input_ids=ids, use_cache=False).logits[0].log_softmax(-1)
    at = torch.from_numpy(trained(sample))
    return logps[at - 1, ids[0, at]]


def together(model: LlamaForCausalLM, samples: list[Sample]) -> torch.Tensor:
    packed = pack(samples)
    logits = model(
        input_ids=torch.from_numpy(packed.ids).unsqueeze(0),
        position_ids=torch.from_numpy(packed.positions).unsqueeze(0),
        attention_mask=torch.from_numpy(packed.visible)[None, None],
        use_cache=False,
        logits_to_keep=torch.from_numpy(packed.sources),
    ).logits[0]
    return logits.log_softmax(-1)[torch.from_numpy(packed.column), torch.from_numpy(packed.targets)]


@settings(max_examples=10, deadline=None)
@given(rows())
def test_logprobs_and_gradients_are_those_of_the_rows_one_by_one(
    model: LlamaForCausalLM, samples: list[Sample]
) -> None:
    weights = torch.linspace(-1, 1, sum(s.trained_tokens for s in samples))
    got = together(model, samples)
    expected = torch.cat([alone(model, s) for s in samples])
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    parameters = [p for p in model.parameters() if p.requires_grad]
    packed_grads = torch.autograd.grad((got * weights).sum(), parameters)
    alone_grads = torch.autograd.grad((expected * weights).sum(), parameters)
    for one, other in zip(packed_grads, alone_grads, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
