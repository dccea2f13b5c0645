"""Names for calls and replies that were never given before."""

from __future__ import annotations

import random


def fresh_id() -> str:
    """128 random bits in hexadecimal. Unique, and no secret: asking the kernel for better ones takes a
    hundred times as long, on every call."""
    return f"{random.getrandbits(128):032x}"
