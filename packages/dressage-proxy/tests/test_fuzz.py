"""The fuzzer of the dialects: a short run of it, and that it sees what it looks for."""

import random

import pytest
from dressage_proxy import fuzz
from dressage_proxy.dialects.chat import ChatWriter
from dressage_proxy.replay.synthetic import synthetic_rows

pytestmark = pytest.mark.heavy


async def test_mutated_requests_are_answered_and_leave_nothing_behind(tmp_path):
    tally = await fuzz.fuzz(tmp_path, requests=256, seed=7, lanes=4)
    assert tally.failures == []
    assert tally.requests == 256
    assert tally.statuses[200] > 20, "some still say something"
    assert tally.statuses[400] > 20, "and some do not"
    assert not [status for status in tally.statuses if status >= 500]


async def test_an_answer_of_5xx_and_a_reply_that_does_not_read_are_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(ChatWriter, "body", lambda self, reply: 1 / 0)
    monkeypatch.setattr(ChatWriter, "events", lambda self, reply: iter([b"data: {}\n\n"]))
    tally = await fuzz.fuzz(tmp_path, requests=128, seed=7, lanes=2)
    assert any(failure.startswith("500") for failure in tally.failures)
    assert any("does not read" in failure for failure in tally.failures)


def test_the_same_seed_makes_the_same_requests():
    def bodies(seed):
        rows = [row for row in synthetic_rows() if row.dialect is not None]
        fuzzer = fuzz.Fuzzer(None, None, rows, random.Random(seed))
        return [fuzzer._bytes(rows[number % len(rows)]) for number in range(200)]

    assert bodies(1) == bodies(1) != bodies(2)


@pytest.mark.parametrize(("failures", "code"), [([], 0), (["500"], 1)])
def test_the_command_exits_1_where_something_failed(monkeypatch, capsys, failures, code):
    async def made(folder, **options):
        return fuzz.Tally(failures=failures)

    monkeypatch.setattr(fuzz, "fuzz", made)
    assert fuzz.main(["--requests", "1"]) == code
    assert f"{len(failures)} failures" in capsys.readouterr().out
