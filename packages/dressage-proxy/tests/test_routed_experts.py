"""Routed experts (R3): from the engine's base64 to the segment's rows, over turns, resumes and branches."""

import asyncio
import base64
import json

import numpy as np
import pytest
from dressage_proxy import ConfigError
from dressage_proxy.engine.experts import ExpertsAsk, ExpertsShape, cut_experts, decode_experts
from dressage_proxy.engine.scripted import Fault, ScriptedEngine, letters
from dressage_proxy.engine.scripted_reply import routing
from dressage_segments import tree_from_records
from hypothesis import given
from hypothesis import strategies as st

SHAPE = (3, 2, 60)
WIDE = (3, 2, 300)


def encoded(rows):
    return memoryview(base64.b64encode(np.ascontiguousarray(rows, "<i4").tobytes()))


def check(trajectory, shape=SHAPE):
    """Every position but the last has the row that belongs to its token."""
    for segment in trajectory.segments:
        assert segment.experts_rows.tolist() == list(range(len(segment) - 1))
        assert segment.experts.dtype == (np.uint8 if shape[2] <= 256 else np.uint16)
        assert np.array_equal(segment.experts, routing(segment.token_ids[:-1].tolist(), 0, shape))


async def rig_with(make_rig, shape=SHAPE, **engine):
    return await make_rig(
        engine=ScriptedEngine(letters(6), experts=shape, **engine), routed_experts=ExpertsShape(*shape)
    )


@given(
    layers=st.integers(1, 4),
    topk=st.integers(1, 4),
    start=st.integers(0, 20),
    rows=st.integers(0, 40),
    full=st.booleans(),
    seed=st.integers(0, 9),
)
def test_rows_are_decoded_from_their_start_whether_the_engine_sends_all_or_the_new_ones(
    layers, topk, start, rows, full, seed
):
    shape = ExpertsShape(layers, topk, 200)
    sent = np.random.default_rng(seed).integers(0, 200, (start + rows, layers, topk))
    text = encoded(sent if full else sent[start:])
    decoded = decode_experts(text, ExpertsAsk(shape, start), start + rows + 1)
    assert decoded.dtype == np.uint8
    assert np.array_equal(decoded, sent[start:])


def test_pieces_of_a_long_text_join_without_a_seam(monkeypatch):
    monkeypatch.setattr("dressage_proxy.engine.experts._PIECE_CHARS", 8)
    sent = np.arange(5 * 7 * 3).reshape(5, 7, 3)
    for start in range(5):
        decoded = decode_experts(encoded(sent), ExpertsAsk(ExpertsShape(7, 3, 1000), start), 6)
        assert decoded.dtype == np.uint16
        assert np.array_equal(decoded, sent[start:])


@pytest.mark.parametrize(
    "text",
    [
        encoded(np.full((4, 2, 2), 9)),  # one row too few
        encoded(np.full((6, 2, 2), 9)),
        encoded(np.full((5, 2, 2), 16)),  # an expert that the model does not have
        encoded(np.full((5, 2, 2), -1)),
        memoryview(b"!" * 108),
        memoryview(b"abc"),
        memoryview(b""),
    ],
)
def test_what_does_not_fit_the_model_or_the_tokens_is_no_evidence(text):
    assert decode_experts(text, ExpertsAsk(ExpertsShape(2, 2, 16), 0), 6) is None


@given(st.text(), st.booleans())
def test_the_experts_text_is_found_in_any_body(noise, spaced):
    reply = {"text": noise + '"routed_experts":"AAAA"', "meta_info": {"routed_experts": "QUJD", "x": noise}}
    body = json.dumps(reply, separators=None if spaced else (",", ":")).encode()
    rest, text = cut_experts(body)
    assert bytes(text) == b"QUJD"
    reply["meta_info"]["routed_experts"] = ""
    assert json.loads(rest) == reply


def test_a_body_without_experts_stays_as_it_is():
    for body in (b"{}", b'{"meta_info":{"routed_experts":null}}', b'{"routed_experts":"AA'):
        assert cut_experts(body) == (body, None)


@pytest.mark.parametrize("shape", [SHAPE, WIDE])
@pytest.mark.parametrize("delta", [True, False])
async def test_rows_are_stitched_over_turns_and_branches(make_rig, shape, delta):
    rig = await rig_with(make_rig, shape, delta_experts=delta)
    session = await rig.open()
    first = await rig.chat(session, "one")
    said = [{"role": "user", "content": "one"}, first.choices[0].message.model_dump(exclude_none=True)]
    await rig.chat(session, *said, "two")
    await rig.chat(session, *said, "another two")
    await rig.chat(session, {"role": "system", "content": "You are another."}, "three")
    trajectory = await rig.end(session)
    assert len(trajectory.segments) == 3
    check(trajectory, shape)
    if delta:
        tree = tree_from_records(rig.store.records(session))
        assert [turn.experts_start for turn in tree.turns] == [0, *[tree.end(0) - 1] * 2, 0]


async def test_rows_are_stitched_over_a_pause(make_rig):
    rig = await rig_with(make_rig)
    session = await rig.open()
    rig.engine.hold_after = 2
    turn = asyncio.create_task(rig.chat(session, "hi"))
    await rig.engine.until_running(1)
    paused = await rig.http.post("/rollout/pause", json={"timeout_s": 5})
    assert paused.json() == {"quiesced": True, "preempted": 1, "waiting": 0}
    await rig.engine.release()
    await rig.http.post("/rollout/resume", json={"version": 1})
    await turn
    trajectory = await rig.end(session)
    assert len(trajectory.segments[0].calls) == 2
    check(trajectory)


async def test_rows_outlive_a_restart(make_rig):
    rig = await rig_with(make_rig)
    session = await rig.open()
    first = await rig.chat(session, "one")
    again = await make_rig(
        engine=rig.engine,
        store=rig.store,
        routed_experts=ExpertsShape(*SHAPE),
        engines=rig.proxy.engines.urls,
    )
    message = first.choices[0].message.model_dump(exclude_none=True)
    await again.chat(session, "one", message, "two")
    check(await again.end(session))


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (Fault.NO_EXPERTS, "missing_experts"),
        (Fault.SHORT_EXPERTS, "misaligned"),
        (Fault.WILD_EXPERT, "misaligned"),
    ],
)
async def test_a_call_without_sound_experts_is_not_trained_and_the_next_one_brings_its_rows(
    make_rig, fault, cause
):
    rig = await rig_with(make_rig)
    rig.engine.inject(fault)
    session = await rig.open()
    first = await rig.chat(session, "one")
    await rig.chat(session, "one", first.choices[0].message.model_dump(exclude_none=True), "two")
    trajectory = await rig.end(session)
    assert trajectory.lost_tokens == {cause: 7}
    assert trajectory.trained_tokens == 7
    check(trajectory)


async def test_without_the_option_none_are_asked_for(rig):
    rig.engine.experts = SHAPE
    session = await rig.open()
    await rig.chat(session, "hi")
    assert (await rig.end(session)).segments[0].experts is None


def test_the_shape_is_read_from_a_checkpoint(tmp_path):
    config = {"num_hidden_layers": 48, "num_experts_per_tok": 8, "num_experts": 128}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert ExpertsShape.from_model(tmp_path) == ExpertsShape(48, 8, 128)
    nested = {"text_config": {"num_hidden_layers": 2, "num_experts_per_tok": 1, "n_routed_experts": 4}}
    (tmp_path / "config.json").write_text(json.dumps(nested))
    assert ExpertsShape.from_model(tmp_path) == ExpertsShape(2, 1, 4)


@pytest.mark.parametrize("config", ["{}", "no json", '{"num_hidden_layers": 4}'])
def test_a_checkpoint_without_experts_is_refused(tmp_path, config):
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(ConfigError, match="routed_experts"):
        ExpertsShape.from_model(tmp_path)


@pytest.mark.parametrize("shape", [(0, 1, 1), (1, 5, 4), (1, 1, 70_000)])
def test_an_impossible_shape_is_refused(shape):
    with pytest.raises(ConfigError):
        ExpertsShape(*shape)
