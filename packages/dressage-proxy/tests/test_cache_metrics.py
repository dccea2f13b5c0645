"""What engines should have had in their caches, and whose doing it was where they had not."""

import pytest
from dressage_proxy.engine.scripted import ScriptedEngine
from prometheus_client.parser import text_string_to_metric_families


async def counts(rig):
    text = (await rig.http.get("/metrics")).text
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith(("dressage_cache", "dressage_prompt"))
    }


async def two_turns(rig, *second, tools=None):
    session = await rig.open()
    text = "word " * 40
    first = await rig.chat(session, text)
    message = first.choices[0].message.model_dump(exclude_none=True)
    await rig.chat(session, *(second or (text, message, "on")), **({"tools": tools} if tools else {}))
    return session


@pytest.fixture
async def cached(make_rig):
    return await make_rig(engine=ScriptedEngine(prefix_cache=100_000))


async def test_an_append_only_history_misses_no_more_than_a_page(cached):
    await two_turns(cached)
    made = await counts(cached)
    expected = made["dressage_cached_tokens_total", "expected"]
    assert expected - 16 <= made["dressage_cached_tokens_total", "reported"] <= expected
    assert made["dressage_cache_misses_tokens_total", "router"] <= 16
    assert ("dressage_cache_misses_tokens_total", "agent") not in made


async def test_an_engine_without_the_prefix_is_the_routers_doing(rig):
    await two_turns(rig)
    made = await counts(rig)
    assert (
        made["dressage_cache_misses_tokens_total", "router"]
        == made["dressage_cached_tokens_total", "expected"]
    )


async def test_a_changed_history_or_tool_list_is_the_agents_doing(cached, shell):
    await two_turns(cached, "word " * 40, {"role": "assistant", "content": "never said"}, "on")
    once = (await counts(cached))["dressage_cache_misses_tokens_total", "agent"]
    assert once > 0
    await two_turns(cached, tools=[shell])
    assert (await counts(cached))["dressage_cache_misses_tokens_total", "agent"] > once
