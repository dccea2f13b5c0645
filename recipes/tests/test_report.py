import io

import pytest
from dressage_recipes.audit import RunAudit
from dressage_recipes.events import Activity, Note, Phase, Progress, StepDone
from dressage_recipes.local.report import (
    Reporter,
    bounds,
    closing_lines,
    draw_rewards,
    moving_mean,
    sparkline,
    step_line,
)
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

STEP = StepDone(
    step=2,
    steps=9,
    reward=0.25,
    tokens_per_s=1234.5,
    seconds=3.0,
    sampled_tokens=4000,
    trained_tokens=3900,
    version=2,
)
SOUND = RunAudit(
    sessions=3,
    unfinished=0,
    unfinished_tokens=0,
    sampled_tokens=10,
    trained_tokens=9,
    proven_tokens=9,
    lost_tokens={"retry": 1},
    doubts=(),
)


def shown(*events, terminal):
    out = io.StringIO()
    with Reporter(Console(file=out, force_terminal=terminal, width=120, highlight=False)) as report:
        for event in events:
            report(event)
    return out.getvalue()


def test_without_a_terminal_each_fact_is_one_plain_line():
    out = shown(Phase("training", 9), Activity("3/64 rollouts"), STEP, Note("a [bold] note"), terminal=False)
    assert out.splitlines() == ["training", step_line(STEP), "a [bold] note"]
    assert "\x1b" not in out


def test_a_terminal_shows_phase_step_reward_and_rate():
    out = shown(Phase("training", 9), STEP, Activity("17/64 rollouts"), terminal=True)
    for part in ("training", "2/9", "reward 0.25", "1,234 tokens/s", "17/64 rollouts"):
        assert part in out


def test_progress_before_any_phase_is_no_error():
    assert shown(Progress(0.5, "fetching"), Activity("x"), terminal=True) is not None


def test_a_step_line_says_step_reward_rate_and_tokens():
    assert step_line(STEP) == (
        "step   2/9  reward 0.250   1,234 tokens/s   3,900 of  4,000 tokens trained    3.0 s"
    )


@given(st.lists(st.floats(0, 1), max_size=300))
def test_a_sparkline_has_a_block_a_step_up_to_its_width(rewards):
    assert len(sparkline(rewards)) == min(60, len(rewards))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=60))
def test_a_sparkline_never_falls_where_the_curve_rises(rewards):
    line = sparkline(sorted(rewards))
    assert list(line) == sorted(line)


def test_a_sparklines_ends_are_0_and_1():
    assert sparkline([0.0, 1.0]) == "▁█"


def test_rewards_beyond_0_and_1_widen_what_the_curve_is_drawn_between():
    assert sparkline([-1.0, 0.0, 1.0]) == "▁▅█"
    assert sparkline([0.0, 5.0, 10.0]) == "▁▅█"
    assert bounds([0.2, 0.4]) == (0.0, 1.0)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60))
def test_a_sparkline_never_falls_where_rewards_of_any_size_rise(rewards):
    line = sparkline(sorted(rewards))
    assert list(line) == sorted(line)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40), st.integers(1, 10))
def test_a_moving_mean_stays_between_the_values_that_it_averages(rewards, window):
    for end, mean in enumerate(moving_mean(rewards, window), start=1):
        part = rewards[max(0, end - window) : end]
        assert min(part) - 1e-9 <= mean <= max(part) + 1e-9


@pytest.mark.parametrize("rewards", [[0.1], [0.1, 0.5, 0.9] * 10, []])
def test_the_picture_is_a_png(tmp_path, rewards):
    path = draw_rewards(rewards, tmp_path / "reward.png", title="seed 1", cold_start=0.2)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_the_closing_lines_name_folder_curve_verdict_and_how_to_look(tmp_path):
    draw_rewards([0.1, 0.9], tmp_path / "reward.png", title="x")
    summary = {"reward_first": 0.1, "reward_last": 0.9, "seconds": 200.0, "setup_seconds": 30.0}
    lines = closing_lines(tmp_path, [0.1, 0.9], summary, SOUND, program="bin/dressage")
    text = "\n".join(lines)
    assert "0.10 over the first 2 steps, 0.90 over the last 2" in text
    assert "set-up 30 s, run 200 s" in text
    assert "audit: holds. P1 to P5 proven for 100% of the trained tokens" in text
    assert str(tmp_path / "reward.png") in text
    assert lines[-1].endswith(f"bin/dressage audit {tmp_path}")


def test_an_interrupted_run_still_says_where_it_lies(tmp_path):
    assert closing_lines(tmp_path, [], {}, None) == [
        f"run      {tmp_path}",
        f"check    dressage audit {tmp_path}",
    ]
