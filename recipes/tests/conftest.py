"""What tests of the recipes share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Tiny models on several threads mostly wait for each other, above all on a busy machine."""
    import torch

    torch.set_num_threads(1)
