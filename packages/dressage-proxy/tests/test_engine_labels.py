"""Engines whose weights have no version number: said loudly, since nothing of them is trained."""

import asyncio
import logging

import pytest
from dressage_proxy.engine.labels import Labels
from dressage_proxy.engine.scripted import Fault, ScriptedEngine

URL = "http://e:1"


async def until(found):
    async with asyncio.timeout(30):
        while not await found():
            await asyncio.sleep(0.01)


def warned(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


async def test_an_engine_that_calls_its_weights_default_is_told_of_at_the_start(make_rig, caplog):
    engine = ScriptedEngine(weight_version=None)  # as SGLang without --weight-version: "default"
    rig = await make_rig(engine=engine, engine_health_s=0.02)

    async def told():
        return (await rig.http.get("/ready")).json()["warnings"]

    await until(told)
    ready = (await rig.http.get("/ready")).json()
    assert ready["ready"], "it answers all the same"
    (warning,) = ready["warnings"]
    assert "'default'" in warning
    assert "--weight-version" in warning
    assert "dressage_unversioned_engines 1.0" in (await rig.http.get("/metrics")).text
    assert warned(caplog) == [warning], "once, however often it is looked at"
    engine.weight_version = "7"

    async def numbered():
        return not await told()

    await until(numbered)
    assert "dressage_unversioned_engines 0.0" in (await rig.http.get("/metrics")).text


async def test_an_engine_with_a_number_is_nothing_to_tell(make_rig, caplog):
    rig = await make_rig(engine_health_s=0.02)
    await rig.chat(await rig.open(), "q")
    await asyncio.sleep(0.1)
    assert (await rig.http.get("/ready")).json()["warnings"] == []
    assert warned(caplog) == []


@pytest.mark.parametrize("fault", [Fault.DEFAULT_VERSION, Fault.NO_VERSION])
async def test_a_reply_of_no_known_version_is_told_of_once(make_rig, caplog, fault):
    rig = await make_rig()
    session = await rig.open()
    for number in range(3):
        rig.engine.inject(fault)
        await rig.chat(session, f"q{number}")
    (warning,) = warned(caplog)
    assert "version_rule" in warning
    assert "/rollout/resume" in warning
    lost = (await rig.end(session)).lost_tokens
    assert list(lost) == ["version_rule"]


def test_engines_are_asked_until_their_label_is_a_number():
    labels = Labels()
    assert labels.open([URL]) == [URL]
    labels.note(URL, None)
    assert labels.open([URL]) == [URL], "it did not answer"
    labels.note(URL, "default")
    assert (labels.open([URL]), list(labels.unusable)) == ([URL], [URL])
    labels.note(URL, "12")
    assert (labels.open([URL]), labels.warnings) == ([], [])
    labels.note("http://old:1", "")
    assert (labels.open([URL, "http://old:1"]), labels.warnings) == ([], []), "it says nothing of it"
    labels.note("http://gone:1", "default")
    labels.open([URL])
    assert labels.warnings == [], "an engine that is gone is forgotten"
