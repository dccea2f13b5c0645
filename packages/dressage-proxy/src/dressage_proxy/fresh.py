"""Names for calls and replies that were never given before."""

from __future__ import annotations

import os
import random

_OWN = random.Random()
"""Apart from the interpreter's shared generator, which any program may seed: names would come again."""
os.register_at_fork(after_in_child=_OWN.seed)


def fresh_id() -> str:
    """128 random bits in hexadecimal. Unique, and no secret: asking the kernel for better ones takes a
    hundred times as long, on every call."""
    return f"{_OWN.getrandbits(128):032x}"
