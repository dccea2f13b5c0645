"""The demo's problems: questions that only the files in the rollout's own sandbox can answer."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

NAMES = (
    "amber", "birch", "cedar", "delta", "ember", "flint", "grove", "heron",
    "ivory", "jade", "koala", "lemon", "maple", "north", "ocean", "pearl",
)  # fmt: skip
"""File names. Short, so that the tiny tokenizer has one token for each."""


class Variant(StrEnum):
    """What a problem asks for."""

    READ = "read"
    """A number that is in the named file."""
    FOLLOW = "follow"
    """The named file holds the name of another file that holds the number."""
    COUNT = "count"
    """How many lines the named file has."""
    EDIT = "edit"
    """Put a given number into the named file."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem: a prompt, the files of its sandbox, and what makes an answer right.

    ``answer`` is the exact text of the last reply ("" where any will do); ``edited`` names the file and the
    content (blanks at its ends aside) that must be there at the end, for :attr:`Variant.EDIT`.
    """

    variant: Variant
    prompt: str
    files: Mapping[str, bytes]
    name: str
    answer: str
    edited: tuple[str, str] | None = None
    path: tuple[str, ...] = ()
    """Shell lines that solve it, in order: what a perfect agent would run."""


def make_problem(rng: random.Random, weights: Mapping[Variant, float]) -> Problem:
    """Draw a problem; the variant by its weight, names and contents at random."""
    variant = rng.choices(list(weights), list(weights.values()))[0]
    name, second, decoy = rng.sample(NAMES, 3)
    number, other = rng.randrange(10, 100), rng.randrange(10, 100)
    files = {decoy: f"{other}\n".encode()}
    if variant is Variant.READ:
        files[name] = f"{number}\n".encode()
        return Problem(variant, f"Read {name}.", files, name, str(number), path=(f"cat {name}",))
    if variant is Variant.FOLLOW:
        files[name] = f"see {second}\n".encode()
        files[second] = f"{number}\n".encode()
        path = (f"cat {name}", f"cat {second}")
        return Problem(variant, f"Read {name}.", files, name, str(number), path=path)
    if variant is Variant.COUNT:
        files[name] = b"".join(f"{rng.randrange(10, 100)}\n".encode() for _ in range(number))
        return Problem(variant, f"Lines of {name}?", files, name, str(number), path=(f"wc -l {name}",))
    files[name] = f"{other}\n".encode()
    return Problem(
        variant,
        f"Put {number} in {name}.",
        files,
        name,
        "",
        edited=(name, str(number)),
        path=(f"echo {number} > {name}",),
    )


def is_right(problem: Problem, final_text: str, files: Mapping[str, bytes]) -> bool:
    """Whether a rollout solved its problem: its last reply is the answer, or the file holds what it should.

    ``files`` is the sandbox at the end; only the edited file is looked at.
    """
    if problem.edited is not None:
        name, content = problem.edited
        return files.get(name, b"").decode(errors="replace").strip() == content
    return final_text.strip() == problem.answer
