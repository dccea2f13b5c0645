"""The local engine over HTTP: SGLang's /generate contract, with a tiny random model."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import httpx
import numpy as np
import pytest
import torch
from dressage_recipes.local.engine.__main__ import server_config
from dressage_recipes.local.engine.batch import BatchEngine
from dressage_recipes.local.engine.server import EngineServer, Stepper
from safetensors.torch import save_file
from transformers import Qwen3Config, Qwen3ForCausalLM

VOCAB, CONTEXT, STOP = 60, 256, 3


@pytest.fixture
def model() -> Qwen3ForCausalLM:
    torch.manual_seed(5)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=CONTEXT,
        initializer_range=0.3,
    )
    return Qwen3ForCausalLM(config).float().eval()


@pytest.fixture
async def client(model: Qwen3ForCausalLM) -> AsyncIterator[httpx.AsyncClient]:
    engine = BatchEngine(model, slots=4, context_length=CONTEXT, retain_bytes=1 << 20, seed=1)
    stepper = Stepper(engine)
    stepper.start()
    server = EngineServer(stepper, model_path="tiny", context_length=CONTEXT, vocab_size=VOCAB)
    transport = httpx.ASGITransport(app=server.app())
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as http:
        yield http
    stepper.stop()


def body(rid: str, ids: list[int], **params: object) -> dict[str, object]:
    return {"rid": rid, "input_ids": ids, "sampling_params": params, "return_logprob": True}


async def generate(client: httpx.AsyncClient, rid: str, ids: list[int], **params: object) -> dict:
    reply = await client.post("/generate", json=body(rid, ids, **params))
    assert reply.status_code == 200, reply.text
    return reply.json()


def behaviour(model: Qwen3ForCausalLM, ids: list[int], output: list[int]) -> np.ndarray:
    with torch.no_grad():
        logits = model(torch.tensor([ids + output])).logits[0, len(ids) - 1 : -1]
    logps = torch.log_softmax(logits.float(), -1)
    return logps.gather(1, torch.tensor(output)[:, None]).squeeze(1).numpy()


async def test_a_reply_has_ids_logprobs_counts_and_the_version(client: httpx.AsyncClient) -> None:
    reply = await generate(client, "a" * 32, [1, 2, 5], max_new_tokens=9, stop_token_ids=[STOP])
    meta = reply["meta_info"]
    assert meta["completion_tokens"] == len(reply["output_ids"]) == len(meta["output_token_logprobs"])
    assert [entry[1] for entry in meta["output_token_logprobs"]] == reply["output_ids"]
    assert meta["prompt_tokens"] == 3
    assert meta["weight_version"] == "0"
    assert meta["weight_versions"] == [{"version": "0", "start": 0, "end": len(reply["output_ids"])}]
    if meta["finish_reason"]["type"] == "stop":
        assert reply["output_ids"][-1] == STOP
        assert meta["finish_reason"]["matched"] == STOP
    else:
        assert len(reply["output_ids"]) == 9


async def test_logprobs_are_the_models_own_whatever_ran_beside_and_before(
    client: httpx.AsyncClient, model: Qwen3ForCausalLM
) -> None:
    """Mixed lengths in one batch, and second turns that reuse the keys of the first."""
    prompts = [list(np.random.default_rng(i).integers(4, VOCAB, 3 + 11 * i).tolist()) for i in range(7)]
    for turn in range(3):
        replies = await asyncio.gather(
            *(generate(client, f"{turn}{i:031d}", ids, max_new_tokens=12) for i, ids in enumerate(prompts))
        )
        for ids, reply in zip(prompts, replies, strict=True):
            told = np.array([entry[0] for entry in reply["meta_info"]["output_token_logprobs"]])
            np.testing.assert_allclose(told, behaviour(model, ids, reply["output_ids"]), atol=1e-3)
            if turn:
                assert reply["meta_info"]["cached_tokens"] > 0
        prompts = [ids + reply["output_ids"] + [7, 8] for ids, reply in zip(prompts, replies, strict=True)]


async def test_an_abort_returns_what_was_sampled(client: httpx.AsyncClient) -> None:
    await client.post("/pause_generation", json={"mode": "in_place"})
    await client.post("/continue_generation", json={})
    task = asyncio.create_task(generate(client, "c" * 32, [1], max_new_tokens=CONTEXT))
    while not (await client.post("/abort_request", json={"rid": "c" * 32})).is_error and not task.done():
        await asyncio.sleep(0)
    reply = await task
    finish = reply["meta_info"]["finish_reason"]["type"]
    assert finish in ("abort", "length")
    if finish == "abort" and reply["output_ids"]:
        assert reply["meta_info"]["completion_tokens"] == len(reply["output_ids"])


async def test_a_pause_ends_what_runs_and_holds_what_comes(client: httpx.AsyncClient) -> None:
    await client.post("/pause_generation", json={})
    task = asyncio.create_task(generate(client, "d" * 32, [1, 2], max_new_tokens=3))
    done, _ = await asyncio.wait({task}, timeout=0.2)
    assert not done
    await client.post("/continue_generation", json={})
    assert (await task)["meta_info"]["finish_reason"]["type"] in ("length", "stop")


async def test_new_weights_have_a_new_version_and_other_logprobs(
    client: httpx.AsyncClient, model: Qwen3ForCausalLM, tmp_path: object
) -> None:
    folder = tmp_path
    before = await generate(client, "e" * 32, [4, 5, 6], max_new_tokens=4)
    state = {name: value * 0.5 for name, value in model.state_dict().items() if "layers" in name}
    save_file(state, f"{folder}/model.safetensors")
    reply = await client.post(
        "/update_weights_from_disk", json={"model_path": str(folder), "weight_version": "8"}
    )
    assert reply.json()["success"]
    after = await generate(client, "f" * 32, [4, 5, 6], max_new_tokens=4)
    assert (before["meta_info"]["weight_version"], after["meta_info"]["weight_version"]) == ("0", "8")
    assert after["meta_info"]["cached_tokens"] == 0
    told = np.array([entry[0] for entry in after["meta_info"]["output_token_logprobs"]])
    np.testing.assert_allclose(told, behaviour(model, [4, 5, 6], after["output_ids"]), atol=1e-3)
    assert (await client.get("/model_info")).json()["weight_version"] == "8"


@pytest.mark.parametrize(
    ("request_body", "field"),
    [
        ({"rid": "x", "input_ids": []}, "input_ids"),
        ({"rid": "x", "input_ids": [VOCAB]}, "input_ids"),
        ({"rid": "x", "input_ids": [1] * CONTEXT}, "input_ids"),
        ({"rid": "", "input_ids": [1]}, "rid"),
        ({"rid": "x", "input_ids": [1], "stream": True}, "stream"),
        ({"rid": "x", "input_ids": [1], "sampling_params": {"bogus": 1}}, "sampling_params.bogus"),
        ({"rid": "x", "input_ids": [1], "sampling_params": {"temperature": -1}}, "temperature"),
    ],
)
async def test_a_bad_request_names_its_field(
    client: httpx.AsyncClient, request_body: dict[str, object], field: str
) -> None:
    reply = await client.post("/generate", json=request_body)
    assert reply.status_code == 400
    assert field in reply.json()["error"]["message"]


async def test_weights_that_do_not_belong_are_refused(client: httpx.AsyncClient, tmp_path: object) -> None:
    save_file({"other.weight": torch.zeros(2)}, f"{tmp_path}/model.safetensors")
    reply = await client.post("/update_weights_from_disk", json={"model_path": str(tmp_path)})
    assert reply.status_code == 400
    assert "other.weight" in reply.json()["error"]["message"]
    missing = await client.post("/update_weights_from_disk", json={"model_path": "/nowhere"})
    assert missing.status_code == 400


def test_a_stopped_stepper_leaves_no_thread(model: Qwen3ForCausalLM) -> None:
    stepper = Stepper(BatchEngine(model, slots=1, context_length=CONTEXT, retain_bytes=0))
    stepper.start()
    stepper.stop()
    assert all(thread.name != "engine" for thread in threading.enumerate())


def test_idle_connections_are_given_up_by_clients_first() -> None:
    clients = httpx.Limits().keepalive_expiry
    assert clients is not None
    assert server_config(None).timeout_keep_alive > 2 * clients
