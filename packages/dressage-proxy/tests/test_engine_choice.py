"""Which engine a step goes to: the rules, the account of load, and the estimate of prefix caches."""

import numpy as np
import pytest
from dressage_proxy.engine.choose import (
    DECODE_WEIGHT,
    Book,
    Choice,
    LeastLoaded,
    PrefixAware,
    Step,
    Sticky,
    chooser,
)
from dressage_proxy.engine.prefix import BLOCK_TOKENS, PrefixCache, chain
from hypothesis import given
from hypothesis import strategies as st

URLS = ("http://a", "http://b", "http://c")


def book(rule, cache_tokens=0):
    made = Book(rule, cache_tokens)
    for url in URLS:
        made.add(url)
    return made


def ids(count, seed=0):
    return np.random.default_rng(seed).integers(0, 1000, count, dtype=np.int32)


def step(session="s", tokens=1000, prompt=(), output=100):
    return Step(session, tokens, output, prompt)


@given(st.integers(0, 2000), st.integers(0, 2000))
def test_chains_agree_on_exactly_the_whole_blocks_that_two_prompts_share(shared, more):
    first, second = ids(shared + more), ids(shared + more)
    second[shared:] += 1
    same = [a == b for a, b in zip(chain(first), chain(second), strict=True)]
    assert sum(same) == (len(same) if not more else shared // BLOCK_TOKENS)
    assert same == sorted(same, reverse=True)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1500)), max_size=12), st.integers(1, 3000))
def test_the_cache_estimate_keeps_its_capacity_and_evicts_leaves_first(prompts, capacity):
    cache = PrefixCache(capacity)
    for seed, count in prompts:
        made = chain(ids(count, seed))
        cache.touch(made)
        assert len(cache) <= max(1, capacity // BLOCK_TOKENS)
        held = min(len(made), max(1, capacity // BLOCK_TOKENS))
        assert cache.cached_tokens(made) == held * BLOCK_TOKENS, "the start of the newest prompt is held"


@given(
    st.sampled_from(list(Choice)),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5000), st.integers(1, 500)), max_size=30),
)
def test_load_is_back_at_nothing_once_everything_ended(choice, calls):
    made = book(chooser(choice), 4096)
    tickets = [made.place(step(f"s{n}", t, chain(ids(t, n)), o), URLS) for n, t, o in calls]
    assert sum(engine.calls for engine in made.engines.values()) == len(calls)
    for number, ticket in enumerate(tickets):
        made.end(ticket, None if number % 3 == 0 else number)
    for engine in made.engines.values():
        assert engine.calls == 0
        assert engine.work == pytest.approx(0, abs=1e-6)
        assert engine.tokens == pytest.approx(0, abs=1e-6)


def test_sticky_keeps_a_session_where_it_is_whatever_the_load():
    made = book(Sticky())
    assert len({made.place(step(), URLS).url for _ in range(9)}) == 1


def test_least_loaded_takes_the_fewest_outstanding_tokens():
    made = book(LeastLoaded())
    assert {made.place(step(tokens=1000), URLS).url for _ in range(3)} == set(URLS)
    long = made.place(step(tokens=50_000), URLS)
    assert all(made.place(step(tokens=100), URLS).url != long.url for _ in range(9))
    made.end(long, 100)
    assert made.place(step(tokens=100), URLS).url == long.url


def test_prefix_aware_goes_where_the_prefix_is_until_the_queue_there_costs_more():
    made = book(PrefixAware(slots=8))
    prompt = chain(ids(20_000))
    home = made.place(step(tokens=20_000, prompt=prompt), URLS).url
    made.end(made.place(step(tokens=20_000, prompt=prompt), URLS), 100)
    urls = [made.place(step(f"s{n}", 20_000, prompt), URLS).url for n in range(400)]
    assert urls[0] == home
    assert set(urls) == set(URLS), "a hot prefix spreads once its engine has more work than a prefill costs"
    spread = next(n for n, url in enumerate(urls) if url != home)
    waiting = DECODE_WEIGHT * 100 * spread / 8
    assert waiting > 15_000, "but no sooner"


def test_a_failed_step_is_not_expected_to_have_left_its_prompt_in_the_cache():
    made = book(PrefixAware())
    prompt = chain(ids(5_000))
    made.end(made.place(step(tokens=5_000, prompt=prompt), URLS), None)
    assert all(engine.cache.cached_tokens(prompt) == 0 for engine in made.engines.values())


def test_an_engine_that_left_while_it_sampled_is_no_trouble():
    made = book(LeastLoaded())
    ticket = made.place(step(), URLS)
    made.remove(ticket.url)
    made.end(ticket, 10)
    made.grown(ticket.url, [1])
    assert ticket.url not in made.engines


@given(st.lists(st.sampled_from(["place", "end", "leave", "come"]), max_size=40))
def test_an_engine_that_comes_and_goes_has_the_load_of_what_it_has_not_ended(events):
    made, under_way = Book(LeastLoaded()), []
    made.add("http://a")
    for event in events:
        if event == "place" and made.engines:
            under_way.append(made.place(step(), list(made.engines)))
        elif event == "end" and under_way:
            made.end(under_way.pop(0), 10)
        elif event == "leave":
            made.remove("http://a")
        elif event == "come":
            made.add("http://a")
        for engine in made.engines.values():
            assert engine.calls == len(under_way)
            assert (engine.tokens > 0) == bool(under_way)


def test_what_is_remembered_of_an_engines_cache_has_an_end_also_where_nobody_says_what_it_holds(monkeypatch):
    monkeypatch.setattr("dressage_proxy.engine.choose.UNKNOWN_CACHE_TOKENS", 20 * BLOCK_TOKENS)
    made = book(PrefixAware())
    for seed in range(30):
        prompt = chain(ids(4 * BLOCK_TOKENS, seed))
        made.end(made.place(step(prompt=prompt), URLS), 1)
    assert max(len(engine.cache) for engine in made.engines.values()) == 20
