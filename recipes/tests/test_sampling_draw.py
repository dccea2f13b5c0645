"""The draw: the right frequencies, never a token without a chance, reproducible rows."""

from __future__ import annotations

import torch
from dressage_recipes.local.engine.sampling import draw
from hypothesis import given, settings
from hypothesis import strategies as st


def test_tokens_come_as_often_as_their_probability_says() -> None:
    probabilities = torch.tensor([0.5, 0.0, 0.3, 0.15, 0.05])
    rows = 200_000
    tokens = draw(probabilities.log().repeat(rows, 1), [None] * rows, torch.Generator().manual_seed(1))
    shares = torch.bincount(tokens, minlength=5) / rows
    # Five standard deviations of the largest share.
    torch.testing.assert_close(shares, probabilities, rtol=0, atol=0.006)
    assert shares[1] == 0


@settings(deadline=None)
@given(st.lists(st.sampled_from([-torch.inf, -90.0, -5.0, 0.0]), min_size=1, max_size=6), st.integers(0, 999))
def test_a_token_that_a_filter_removed_is_never_drawn(scores: list[float], seed: int) -> None:
    if all(score == -torch.inf for score in scores):
        scores = [0.0, *scores]
    logps = torch.log_softmax(torch.tensor([scores] * 64), dim=-1)
    tokens = draw(logps, [None] * 64, torch.Generator().manual_seed(seed))
    assert torch.isfinite(logps[0][tokens]).all()


def test_a_row_with_its_own_generator_does_not_depend_on_its_neighbours() -> None:
    logps = torch.log_softmax(torch.randn(6, 500, generator=torch.Generator().manual_seed(0)), dim=-1)
    alone = draw(logps[3:4], [torch.Generator().manual_seed(7)], torch.Generator().manual_seed(1))
    own = [torch.Generator().manual_seed(7) if row == 3 else None for row in range(6)]
    among = draw(logps, own, torch.Generator().manual_seed(2))
    assert among[3] == alone[0]
