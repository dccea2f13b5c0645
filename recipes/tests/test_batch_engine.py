"""The batch engine: whatever joins, leaves or is reused, a logprob is the model's own at that place."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from dressage_recipes.local.engine.batch import BatchEngine, Request
from dressage_recipes.local.engine.errors import InvalidRequestError
from dressage_recipes.local.engine.prefix import PrefixStore, shared_length
from dressage_recipes.local.engine.sampling import SamplingParams, distribution, draw, parse_sampling
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Qwen3Config, Qwen3ForCausalLM

VOCAB, CONTEXT = 50, 160


def make_model() -> Qwen3ForCausalLM:
    torch.manual_seed(11)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=CONTEXT,
        initializer_range=0.3,
    )
    return Qwen3ForCausalLM(config).float().eval()


MODEL = make_model()


def engine(**options: int) -> BatchEngine:
    settings = {"slots": 5, "context_length": CONTEXT, "retain_bytes": 1 << 20, "seed": 3, **options}
    return BatchEngine(MODEL, **settings)


def own_logprobs(ids: list[int], prompt: int) -> np.ndarray:
    with torch.no_grad():
        logps = torch.log_softmax(MODEL(torch.tensor([ids])).logits[0].float(), -1)
    return np.array([logps[at - 1, ids[at]].item() for at in range(prompt, len(ids))])


def check(request: Request) -> None:
    assert len(request.output) == len(request.logprobs) == len(request.versions)
    expected = own_logprobs(request.ids, len(request.prompt))
    np.testing.assert_allclose(request.logprobs, expected, atol=1e-4)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_logprobs_are_the_models_own_however_requests_join_leave_and_share_prefixes(
    data: st.DataObject,
) -> None:
    rng = random.Random(data.draw(st.integers(0, 2**32)))
    batch, done = engine(slots=rng.choice([1, 3, 6])), list[Request]()
    common = [rng.randrange(VOCAB) for _ in range(40)]

    def submit(prompt: list[int], turns: int) -> None:
        def ended(request: Request) -> None:
            done.append(request)
            if turns and len(request.ids) < 100:
                # The next turn extends this one, as an agent's does.
                submit([*request.ids, *[rng.randrange(VOCAB) for _ in range(rng.randrange(1, 9))]], turns - 1)

        params = SamplingParams(max_new_tokens=rng.randrange(1, 12), stop_token_ids=frozenset({7}))
        batch.submit(Request(f"{len(done)}-{rng.random()}", prompt, params, ended))

    for _ in range(rng.randrange(1, 10)):
        shared = common[: rng.randrange(0, 41)]
        submit([*shared, *[rng.randrange(VOCAB) for _ in range(rng.randrange(1, 20))]], rng.randrange(0, 3))
        for _ in range(rng.randrange(0, 4)):
            batch.step()
    while batch.busy:
        batch.step()
    assert done
    for request in done:
        check(request)


def test_the_next_turn_reuses_the_keys_of_the_last() -> None:
    batch, done = engine(), list[Request]()
    batch.submit(Request("a", list(range(20)), SamplingParams(max_new_tokens=4), done.append))
    while batch.busy:
        batch.step()
    batch.submit(Request("b", [*done[0].ids, 1, 2], SamplingParams(max_new_tokens=4), done.append))
    while batch.busy:
        batch.step()
    assert done[1].reused == len(done[0].ids) - 1
    check(done[1])


def test_equal_prompts_that_arrive_together_are_computed_once() -> None:
    batch, done = engine(), list[Request]()
    prompt = [i % VOCAB for i in range(64)]
    for name in "abcd":
        batch.submit(Request(name, prompt, SamplingParams(max_new_tokens=3), done.append))
    while batch.busy:
        batch.step()
    assert sorted(r.reused for r in done) == [0, 63, 63, 63]
    for request in done:
        check(request)


def test_new_weights_name_new_tokens_and_old_keys_are_forgotten() -> None:
    batch, done = engine(), list[Request]()
    batch.submit(Request("a", list(range(20)), SamplingParams(max_new_tokens=6), done.append))
    for _ in range(3):
        batch.step()
    batch.pause("retract")
    batch.weights_changed("9")
    batch.resume()
    while batch.busy:
        batch.step()
    assert done[0].versions == ["0"] * 3 + ["9"] * 3
    check(done[0])
    batch.weights_changed("10")
    batch.submit(Request("b", done[0].ids, SamplingParams(max_new_tokens=1), done.append))
    batch.step()
    assert done[1].reused == 0


@pytest.mark.parametrize("mode", ["retract", "in_place"])
def test_a_pause_holds_everything_and_loses_nothing(mode: str) -> None:
    batch, done = engine(), list[Request]()
    for name in "abcdefg":
        batch.submit(Request(name, [1, 2, 3], SamplingParams(max_new_tokens=8), done.append))
    batch.step()
    batch.pause(mode)
    before = batch.decoded
    batch.step()
    assert batch.decoded == before
    assert not batch.busy
    batch.resume()
    while batch.busy:
        batch.step()
    assert len(done) == 7
    for request in done:
        check(request)


def test_an_abort_ends_running_requests_with_their_part_and_queued_ones_with_nothing() -> None:
    batch, done = engine(slots=1), list[Request]()
    for name in ("one", "two", "other"):
        batch.submit(Request(name, [1, 2, 3], SamplingParams(max_new_tokens=50), done.append))
    for _ in range(4):
        batch.step()
    assert batch.abort("o") == 2
    by_name = {request.rid: request for request in done}
    assert by_name["one"].finish == {"type": "abort", "message": "aborted"}
    assert len(by_name["one"].output) == 4
    assert by_name["other"].output == []
    assert not by_name["other"].started
    assert batch.abort("unknown") == 0
    assert batch.abort(None) == 1
    assert not batch.busy


def test_a_seeded_request_draws_the_same_whatever_runs_beside_it() -> None:
    outputs = []
    for others in (0, 3):
        batch, done = engine(seed=others), list[Request]()
        params = SamplingParams(max_new_tokens=20, sampling_seed=5)
        batch.submit(Request("it", [4, 5, 6], params, done.append))
        for number in range(others):
            batch.submit(
                Request(f"other{number}", [number], SamplingParams(max_new_tokens=9), lambda r: None)
            )
        while batch.busy:
            batch.step()
        outputs.append(done[0].output)
    assert outputs[0] == outputs[1]


def test_the_turns_of_a_seeded_rollout_do_not_draw_the_same_noise_again() -> None:
    batch, done = engine(retain_bytes=0), list[Request]()
    uniform = SamplingParams(max_new_tokens=20, sampling_seed=5, temperature=100.0)
    batch.submit(Request("turn1", [4, 5, 6], uniform, done.append))
    batch.submit(Request("turn2", [4, 5, 6, 7], uniform, done.append))
    while batch.busy:
        batch.step()
    same = sum(a == b for a, b in zip(done[0].output, done[1].output, strict=True))
    assert same < 10


params_strategy = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 1.7]),
    top_p=st.sampled_from([0.1, 0.5, 0.9, 1.0]),
    top_k=st.sampled_from([-1, 1, 3, 40]),
    min_p=st.sampled_from([0.0, 0.1]),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(params_strategy, min_size=1, max_size=4), st.integers(0, 2**31))
def test_reported_logprobs_are_a_distribution_that_keeps_its_filters(
    params: list[SamplingParams], seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn((len(params), VOCAB), generator=generator) * 3
    logps = distribution(logits, params)
    np.testing.assert_allclose(logps.exp().sum(-1).numpy(), 1.0, atol=1e-5)
    tokens = draw(logps, [None] * len(params), generator)
    for row, one in enumerate(params):
        assert torch.isfinite(logps[row, tokens[row]])
        kept = int(torch.isfinite(logps[row]).sum())
        if one.temperature == 0.0 or one.top_k == 1:
            assert kept == 1
            assert int(tokens[row]) == int(logits[row].argmax())
        elif one.top_k > 0:
            assert kept <= one.top_k
        # What is kept are the most likely tokens.
        order = logits[row].argsort(descending=True)
        assert torch.isfinite(logps[row][order[:kept]]).all()


def test_c16_a_temperature_changes_the_reported_logprob_as_it_changes_the_sampling() -> None:
    logps = distribution(torch.tensor([[2.0, 1.0, 0.0]]), [SamplingParams(temperature=0.5)])
    assert logps[0, 0].item() == pytest.approx(-0.1429, abs=1e-3)


def test_draws_follow_the_distribution() -> None:
    logps = torch.log(torch.tensor([[0.7, 0.2, 0.1, 0.0]])).repeat(20000, 1)
    tokens = draw(logps, [None] * 20000, torch.Generator().manual_seed(1))
    counts = torch.bincount(tokens, minlength=4) / 20000
    np.testing.assert_allclose(counts.numpy(), [0.7, 0.2, 0.1, 0.0], atol=0.015)


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        ({"colour": 1}, "sampling_params.colour"),
        ({"temperature": -1}, "sampling_params.temperature"),
        ({"temperature": "hot"}, "sampling_params.temperature"),
        ({"top_p": 0}, "sampling_params.top_p"),
        ({"max_new_tokens": 0}, "sampling_params.max_new_tokens"),
        ({"max_new_tokens": True}, "sampling_params.max_new_tokens"),
        ({"stop_token_ids": "ab"}, "sampling_params.stop_token_ids"),
        ({"stop": ["x"]}, "sampling_params.stop"),
        ({"repetition_penalty": 1.2}, "sampling_params.repetition_penalty"),
        ({"n": 2}, "sampling_params.n"),
        ([], "sampling_params"),
    ],
)
def test_a_wrong_or_unsupported_parameter_is_refused_by_name(raw: object, field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_sampling(raw)
    assert caught.value.field == field


def test_parameters_that_ask_for_nothing_pass() -> None:
    neutral = {
        "stop": [],
        "repetition_penalty": 1.0,
        "n": 1,
        "skip_special_tokens": False,
        "json_schema": None,
    }
    assert parse_sampling({**neutral, "temperature": 0.5}) == SamplingParams(temperature=0.5)
    assert parse_sampling(None) == SamplingParams()


ids_strategy = st.lists(st.integers(0, 2), max_size=20)


@given(ids_strategy, ids_strategy)
def test_shared_length_is_that_of_the_common_beginning(a: list[int], b: list[int]) -> None:
    expected = 0
    while expected < min(len(a), len(b)) and a[expected] == b[expected]:
        expected += 1
    assert shared_length(a, b) == expected


@given(st.lists(st.lists(st.integers(0, 2), min_size=8, max_size=14), max_size=8), ids_strategy)
def test_the_store_finds_the_longest_kept_beginning(entries: list[list[int]], ids: list[int]) -> None:
    store = PrefixStore(1 << 20)
    for entry in entries:
        store.put(entry, [torch.tensor(entry)])
    length, saved = store.longest(ids)
    assert length == max((shared_length(entry, ids) for entry in entries), default=0)
    if length:
        assert saved is not None
        assert saved[0][:length].tolist() == ids[:length]


def test_the_store_keeps_to_its_bytes_and_drops_what_was_not_used_longest() -> None:
    store = PrefixStore(2 * 80)
    rows = {name: [name] * 10 for name in (1, 2, 3)}
    store.put(rows[1], [torch.zeros(10, dtype=torch.int64)])
    store.put(rows[2], [torch.zeros(10, dtype=torch.int64)])
    store.longest(rows[1])
    store.put(rows[3], [torch.zeros(10, dtype=torch.int64)])
    assert [store.longest(row)[0] for row in rows.values()] == [10, 0, 10]
