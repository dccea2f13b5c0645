"""An expression that is said to keep lone spaces never finds a word that goes over one."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from dressage_tito.lonespaces import keeps_lone_spaces
from dressage_tito.words import _GPT2, _ascii_only, _proven_split
from hypothesis import given, settings
from hypothesis import strategies as st

END = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
KEPT = [
    _GPT2,
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + END,
    r"[^\r\n\p{L}\p{N}]?\p{Lu}*\p{Ll}+(?i:'s|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + END,
    r"\p{N}{1,3}",
    r"[!\"#]\p{L}+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*" + END,
]
NOT_KEPT = [
    r"New York|\p{L}+|\s+",
    r"\p{N}{3} \p{N}{3}|\p{N}+|\s+",
    r"\p{L}+ ?|\s+",
    r"[^\n]+|\n",
    r"\p{L}+(?! x)|\s+",
    r"\p{L}+(?=\s)|\p{L}|\s+",
    r"(?:a| )+|\s+",
    r"\p{L}+\s+",
]


@pytest.mark.parametrize("pattern", KEPT)
def test_how_models_write_their_expressions_keeps_lone_spaces(pattern: str) -> None:
    assert keeps_lone_spaces(_ascii_only(pattern))


@pytest.mark.parametrize("pattern", NOT_KEPT)
def test_an_expression_that_goes_over_a_space_or_looks_over_one_does_not(pattern: str) -> None:
    assert not keeps_lone_spaces(_ascii_only(pattern))


@pytest.mark.parametrize("phrase", [r"New York", r"\p{N}{3} \p{N}{3}(?!\p{N})"])
def test_a_tokenizer_whose_words_go_over_a_space_is_not_cut_into_chunks(phrase: str) -> None:
    splitter: dict[str, Any] = {
        "type": "Sequence",
        "pretokenizers": [
            {
                "type": "Split",
                "pattern": {"Regex": f"{phrase}|{_GPT2}"},
                "behavior": "Isolated",
                "invert": False,
            },
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        ],
    }
    assert _proven_split(json.dumps(splitter)) is None


ATOMS = st.sampled_from(
    ["a", " ", r"\p{L}", r"\s", r"\S", r"[^\s\p{L}]", r"[^\r\n]", r"[ a]", "1", r"[\r\n]", "(?i:b|c)"]
)
ITEMS = st.builds("".join, st.tuples(ATOMS, st.sampled_from(["", "", "?", "*", "+", "{1,3}"])))
PATTERNS = st.lists(
    st.lists(ITEMS, min_size=1, max_size=3)
    .map("".join)
    .flatmap(lambda text: st.sampled_from([text, text, text + r"(?!\S)"])),
    min_size=1,
    max_size=3,
).map("|".join)


@settings(max_examples=400, deadline=None)
@given(PATTERNS, st.text("aB1 .\n", max_size=20))
def test_no_match_goes_over_a_lone_space(pattern: str, text: str) -> None:
    written = _ascii_only(pattern)
    if keeps_lone_spaces(written):
        for match in re.finditer(written, text):
            assert not re.search(r"\S ", match.group()), (pattern, text)
