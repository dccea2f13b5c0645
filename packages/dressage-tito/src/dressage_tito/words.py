"""Plain text to ids word by word: each word's ids are made once by the tokenizer itself, and kept.

A byte-level BPE cuts a text into words by regular expressions and encodes each word alone, so that the ids of
a text are those of its words. The expressions are written for all of Unicode; here they are read for ASCII,
where ``re`` can follow them. Whether the words are the tokenizer's own is proven once for each set of
expressions, on every few characters of the kinds that they tell apart.

Most words end at a space that stands alone, and no word goes over one (this shows in how the expressions are
written): there a text is cut first, without the expressions, into chunks of a word or a few, whose ids are
kept as well. Chunks with other characters than those of ASCII are the tokenizer's own work, whole.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from dressage_tito.bytelevel import spelled_bytes
from dressage_tito.lonespaces import keeps_lone_spaces

Json = Mapping[str, Any]
Split = Callable[[str], list[str]]

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""What the tokenizers library splits by where ByteLevel says ``use_regex``."""
_ASCII = [chr(code) for code in range(128)]
_SPACE = r"\t\n\x0b\x0c\r "
"""White space as Unicode has it; that of ``re`` has U+001C to U+001F too."""
_GROUPS = ("(?:", "(?i:", "(?!", "(?=")
_FOLDED_CLASS = re.compile(r"\(\?i:[^)]*(?:\(|\\p)")
"""Whether a class of capitals has small letters there as well is each engine's own."""
_TOLD_APART = "aZ1 .$'\n\r\t\x0b\x1c\0"
"""A character of each kind that such expressions know."""
_MOST_TOLD = "as' 1\n."
_CONTRACTIONS = "a's b't 'RE I'vex 'm. we'll'd d'D 'l'r'v"
_LONE_SPACE = re.compile(rf" (?=[^{_SPACE}])(?<=[^{_SPACE}] )")
"""A space with something visible on both sides."""
_ASCII_SPACE = re.compile(r" (?=[!-~])(?<=[!-~] )")
"""The same between visible characters of ASCII, which no normal form of Unicode joins to what is beside."""
_FOREIGN = (
    "\u00e9\u00c9\u01c5\u02b0\u4f60\u3042\u30ab\ud55c\u0e01\u0639\u05d0\u0905\u0301\u093e\u20dd\u0663"
    "\u2167\u00bd\u203f\u2014\u00ab\u00bb\u201e\u2026\u00b7\u20ac\u2212\u02d8\u00a9\U0001f600\u00a0\u3000\u2028"
    "\u2029\x85\u200d\u200b\ue000\u0378\u017f\u212a"
)
"""A character of each category and of scripts that expressions name, and what folds to a letter of ASCII."""
_BESIDE_SPACE = "aZ1.'_$"
_TOUCHING = ("  ", " \n", "\n ", "\t", "\r", "\x0b", "\x0c")
"""Where none of these is, every space inside a text stands alone."""
_KEPT_WORDS = 1 << 15
_KEPT_CHARS = 32
"""Longer words hardly come again."""


class UnreadableError(ValueError):
    """An expression that is not followed here."""


class _ForbiddenError(Exception):
    """A word has a forbidden id."""


class _Kept(dict[str, bytes]):
    """Ids (int32, as bytes) of short texts, made when they are first asked for. May be shared by threads."""

    def __init__(self, make: Callable[[str], bytes]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, text: str) -> bytes:
        made = self._make(text)
        if len(text) <= _KEPT_CHARS:
            if len(self) >= _KEPT_WORDS:
                self.clear()
            self[text] = made
        return made


class Words:
    """The ids of texts. May be shared by threads."""

    def __init__(self, tokenizer: Tokenizer, split: Split, forbidden: Set[int] = frozenset()) -> None:
        self._tokenizer = tokenizer
        self._model = tokenizer.model
        self._split = split
        self._forbidden = forbidden
        self._words = _Kept(self._word)
        self._chunks = _Kept(lambda chunk: self._by_word(" " + chunk))
        """By chunk, less the space before it."""

    @classmethod
    def of(cls, tokenizer: Tokenizer, folder: Json, forbidden: Set[int] = frozenset()) -> Words | None:
        """For a byte-level tokenizer without added tokens, and its tokenizer.json; None where its words are
        not proven to be found here."""
        if (folder.get("model") or {}).get("dropout"):
            return None
        split = _proven_split(json.dumps(folder.get("pre_tokenizer")))
        return None if split is None else cls(tokenizer, split, forbidden)

    def ids(self, text: str) -> NDArray[np.int32] | None:
        """The ids of a text, as the tokenizer gives them without special tokens: int32 [T], read-only; None
        where a forbidden id is among them."""
        first, *others = chunks(text)
        try:
            return np.frombuffer(
                b"".join([self._by_word(first), *map(self._chunks.__getitem__, others)]), dtype=np.int32
            )
        except _ForbiddenError:
            return None

    def _by_word(self, text: str) -> bytes:
        if text.isascii():
            return b"".join(map(self._words.__getitem__, self._split(text)))
        return self._packed(self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids)

    def _word(self, word: str) -> bytes:
        return self._packed([token.id for token in self._model.tokenize(word.translate(spelled_bytes()))])

    def _packed(self, ids: Sequence[int]) -> bytes:
        if not self._forbidden.isdisjoint(ids):
            raise _ForbiddenError
        return np.array(ids, dtype=np.int32).tobytes()


def chunks(text: str) -> list[str]:
    """What lies between the spaces of a text that stand alone, between characters of ASCII."""
    if not text.isascii():
        return _ASCII_SPACE.split(text)
    if not any(map(text.__contains__, _TOUCHING)):
        found = text.split(" ")
        if found[0] and found[-1]:
            return found
    return _LONE_SPACE.split(text)


def _patterns(splitter: Json | None) -> Iterator[str]:
    """The expressions that a text is split by, one after the other."""
    kind = (splitter or {}).get("type")
    if splitter is None or kind not in ("Sequence", "Split", "ByteLevel"):
        raise UnreadableError(f"pre_tokenizer {kind!r}")
    if kind == "Sequence":
        for part in splitter["pretokenizers"]:
            yield from _patterns(part)
    elif kind == "ByteLevel":
        if splitter.get("use_regex", True):
            yield _GPT2
    elif splitter["behavior"] != "Isolated" or splitter["invert"] or "Regex" not in splitter["pattern"]:
        raise UnreadableError(f"Split {splitter['behavior']!r}")
    else:
        yield splitter["pattern"]["Regex"]


def _ascii_only(pattern: str) -> str:
    """The expression in the dialect of ``re``, with its classes cut to ASCII. Raises UnreadableError."""
    made: list[str] = []
    rest = pattern
    inside = False
    if _FOLDED_CLASS.search(pattern):
        raise UnreadableError(pattern)
    while rest:
        taken, text = _escape(rest, inside) if rest[0] == "\\" else (1, rest[0])
        if rest[0] == "(" and not inside:
            text = next((group for group in _GROUPS if rest.startswith(group)), "")
            taken = len(text)
            if not text:
                raise UnreadableError(pattern)
        elif rest.startswith((".", "^", "$", "}+", "}?") if not inside else ("[", "&&")):
            raise UnreadableError(pattern)  # an interval with + or ? after it means another thing in ``re``
        elif rest[0] == "[":
            inside = True
            negated = rest.startswith("[^")
            taken, text = 1 + negated, "[^" if negated else "["
        elif rest[0] == "]":
            inside = False
        made.append(text)
        rest = rest[taken:]
    return "".join(made)


def _escape(rest: str, inside: bool) -> tuple[int, str]:
    """An escape at the start of ``rest``: its length and how ``re`` writes it."""
    kind = rest[1:2]
    if kind == "s":
        return 2, _SPACE if inside else f"[{_SPACE}]"
    if kind == "S" and not inside:
        return 2, f"[^{_SPACE}]"
    if kind == "p":
        end = rest.index("}") + 1
        name = rest[3 : end - 1]
        if name[:1] not in "LMNPSZC" or len(name) > 2:
            raise UnreadableError(rest[:end])
        chars = "".join(re.escape(char) for char in _ASCII if unicodedata.category(char).startswith(name))
        return end, chars if inside else f"[{chars}]" if chars else r"[^\s\S]"
    if kind in ("r", "n", "t") or (kind and kind.isascii() and not kind.isalnum()):
        return 2, rest[:2]
    raise UnreadableError(rest[:2])


def _splitter(patterns: Sequence[str]) -> Split:
    """The words of a text: what one expression finds, and what lies between, goes to the next."""
    if not patterns:
        return lambda text: [text] if text else []
    splits = [_one(re.compile(pattern)) for pattern in patterns]
    first, *others = splits
    if not others:
        return first

    def split(text: str) -> list[str]:
        words = first(text)
        for other in others:
            words = list(itertools.chain.from_iterable(map(other, words)))
        return words

    return split


def _one(pattern: re.Pattern[str]) -> Split:
    """Splitting by one expression: matches and what lies between them are words."""
    find = pattern.findall

    def split(text: str) -> list[str]:
        words: list[str] = find(text)
        if sum(map(len, words)) == len(text):
            return words
        words, end = [], 0
        for match in pattern.finditer(text):
            words += [text[end : match.start()], match.group()]
            end = match.end()
        return [word for word in [*words, text[end:]] if word]

    return split


@functools.lru_cache(maxsize=64)
def _proven_split(pre_tokenizer: str) -> Split | None:
    """How a pre_tokenizer (JSON) cuts ASCII texts, where it does so in all trials; else None."""
    parsed = json.loads(pre_tokenizer)
    try:
        patterns = [_ascii_only(pattern) for pattern in _patterns(parsed)]
        split = _splitter(patterns)
    except (UnreadableError, re.error):
        return None
    if any(re.match(pattern, "") for pattern in patterns) or not all(map(keeps_lone_spaces, patterns)):
        return None  # after an empty match the library goes on in another way
    model = {"type": "BPE", "vocab": {}, "merges": []}
    own = Tokenizer.from_str(json.dumps({"version": "1.0", "pre_tokenizer": parsed, "model": model}))

    def found(text: str) -> list[str]:
        return [word for word, _ in own.pre_tokenizer.pre_tokenize_str(text)]

    def ascii_words(text: str) -> list[str]:
        return [word.translate(spelled_bytes()) for word in split(text)]

    for text in _trials():
        words = found(text)
        if ascii_words(text) != words or _by_chunk(text, ascii_words) != words:
            return None
    text = _foreign_trial()
    return split if _by_chunk(text, found) == found(text) else None


def _by_chunk(text: str, split: Split) -> list[str]:
    first, *others = chunks(text)
    return [*split(first), *itertools.chain.from_iterable(split(" " + chunk) for chunk in others)]


def _foreign_trial() -> str:
    """Each character that is none of ASCII on either side of a space that stands alone."""
    around = [*_FOREIGN, *_TOLD_APART]
    sides = itertools.product(around, _BESIDE_SPACE, _BESIDE_SPACE)
    return "".join(f"{far}{left} {right}{far}" for far, left, right in sides)


def _trials() -> Iterable[str]:
    """Texts in which every few characters that an expression tells apart follow each other."""
    joined = "".join
    yield joined(map(joined, itertools.product(_TOLD_APART, repeat=3)))
    yield joined(map(joined, itertools.product(_MOST_TOLD, repeat=4)))
    yield joined(f"{a}{b} {c}{d}" for a, b, c, d in itertools.product(_TOLD_APART, repeat=4))
    yield joined(f"a{char}b {char} 1{char}{char}\n{char}" for char in _ASCII)
    yield _CONTRACTIONS
    yield from (joined(trial) for trial in itertools.product(_MOST_TOLD, repeat=2))
