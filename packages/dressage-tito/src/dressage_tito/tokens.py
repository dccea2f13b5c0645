"""Text to ids and back, with control ids only where the caller says so.

Every added token of at least two visible characters is a *control literal* (``<|im_end|>``, and also those
that a tokenizer does not call special, such as ``<tool_call>`` or ``<think>``): its id stands for structure,
so it may come from a template's frame only. HTML tags that a tokenizer does not call special are plain text.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import json
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from dressage_tito.bytelevel import IdBytes, alphabet
from dressage_tito.errors import FolderError
from dressage_tito.folder import MAX_IDS, TokenizerFolder
from dressage_tito.literals import is_control, literal_pattern, with_blanks
from dressage_tito.spans import Span, without_escapes
from dressage_tito.unbreakable import UnbreakableTokenError
from dressage_tito.words import Words

Json = Mapping[str, Any]
_Unframed = tuple[int, int, NDArray[np.bool_] | Literal[False]]
"""Of the ids from the first number up to the second: which are the frame's."""

_NO_ADDED = '"added_tokens": []'
_FRAME_RUNS = 256
_FRAME_RUN_CHARS = 256
"""Short runs of a template's frame come again on every turn: so many are remembered."""
_WORDS_CHARS = 1 << 18
"""Longer texts would hold the interpreter's lock for too long."""


class Tokens:
    """A tokenizer split in two: control literals, and everything else as plain text."""

    def __init__(self, folder: TokenizerFolder, *, threads: bool = False) -> None:
        added: list[dict[str, Any]] = folder.tokenizer["added_tokens"]
        control = [item for item in added if is_control(item)]
        plain = [item for item in added if not is_control(item)]
        self.control_ids: dict[str, int] = {str(item["content"]): int(item["id"]) for item in control}
        self.special_ids: dict[int, str] = {
            int(item["id"]): str(item["content"]) for item in control if item.get("special")
        }
        self._control_set = frozenset(self.control_ids.values())
        self._control_arrays = {token: np.array([token], dtype=np.int32) for token in self._control_set}
        source = json.dumps({**folder.tokenizer, "added_tokens": [], "truncation": None, "padding": None})
        self._full = _build(folder, source, added)
        self._plain = _build(folder, source, plain)
        self.literals = literal_pattern(control, words=False)
        self._frame_literals = literal_pattern(control, words=True)
        self._strips = {
            str(item["content"]): (bool(item.get("lstrip")), bool(item.get("rstrip")))
            for item in control
            if item.get("lstrip") or item.get("rstrip")
        }
        vocabulary = self._full.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocabulary.values(), default=-1) + 1
        if self.vocab_size > MAX_IDS:
            raise FolderError(
                str(folder.path / "tokenizer.json"),
                f"the vocabulary has id {self.vocab_size - 1}: ids are below {MAX_IDS}",
                "Save the tokenizer again in its fast form.",
            )
        self._byte_level = not plain and _is_byte_level(folder.tokenizer)
        self._threads = threads
        self._json = folder.tokenizer
        self._short_frame_ids = functools.lru_cache(_FRAME_RUNS)(self._frame_ids)

    def id_of(self, text: str) -> int | None:
        """The id of a token given by its text, or None."""
        found = self._full.token_to_id(text)
        return None if found is None else int(found)

    def is_control(self, token: int) -> bool:
        """Whether the id belongs to a control literal."""
        return token in self._control_set

    def decode(self, ids: Sequence[int] | NDArray[np.int32]) -> str:
        """All ids as text, control ids spelled out; bytes that are no UTF-8 become U+FFFD."""
        values = ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
        if self._bytes is not None:
            return self._bytes.text(values)
        return str(self._full.decode(values, skip_special_tokens=False))

    def decode_structure(self, ids: Sequence[int]) -> str:
        """The ids as text in which control literals stand for control ids alone: others are broken by NUL."""
        pieces = []
        for control, run in itertools.groupby(ids, key=self.is_control):
            text = self.decode(list(run))
            pieces.append(text if control else self.literals.sub(lambda m: "\0".join(m.group()), text))
        return "".join(pieces)

    def encode_reference(self, text: str) -> list[int]:
        """The unsplit tokenizer's ids (control literals parsed everywhere): for comparison only."""
        return list(self._full.encode(text, add_special_tokens=False).ids)

    def encode_plain(self, text: str) -> list[int]:
        """Ids of a text with no control literal recognised. Raises UnbreakableTokenError."""
        return self._encode_plain(text)[0]

    def encode(
        self, text: str, content: Sequence[Span], escape: str
    ) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """Ids int32 [T] and frame bool [T] of a rendered text.

        ``content`` are the spans that are message content, ordered and apart; ``escape`` is a character that
        breaks control literals inside content and is taken out here. Text between two control literals of
        the frame is encoded as one run, so that merges over the border of frame and content are the full
        render's.
        """
        ids: list[NDArray[np.int32]] = []
        unframed: list[_Unframed] = []
        size = position = placed = 0
        for start, end, token in [*self._frame_matches(text, content), (len(text), len(text), None)]:
            first = placed
            while placed < len(content) and content[placed][0] < start:
                placed += 1
            spans = [
                (max(a, position) - position, min(b, start) - position)
                for a, b in content[first:placed]
                if max(a, position) < min(b, start)
            ]
            run, places = self._encode_run(text[position:start], spans, escape)
            unframed += [(size + a, size + b, value) for a, b, value in places]
            ids.append(run)
            size += len(run)
            if token is not None:
                ids.append(self._control_arrays[token])
                size += 1
            position = end
        frame = np.empty(size, dtype=np.bool_)
        frame.fill(True)
        for first, end, value in unframed:
            frame[first:end] = value
        return np.concatenate(ids), frame

    def _frame_matches(self, text: str, content: Sequence[Span]) -> list[tuple[int, int, int]]:
        """(start, end, id) of the control literals that lie wholly in the frame, with the blanks beside them,
        also those of content, that their tokens swallow."""
        matches = []
        position = swallowed = 0
        for start, end in [*content, (len(text), len(text))]:
            for match in self._frame_literals.finditer(text, position, start):
                literal = match.group()
                first, last = match.span()
                if literal in self._strips:
                    first, last = with_blanks(text, swallowed, first, last, *self._strips[literal])
                matches.append((first, last, self.control_ids[literal]))
                swallowed = last
            position = end
        return matches

    def _encode_run(
        self, text: str, spans: list[Span], escape: str
    ) -> tuple[NDArray[np.int32], list[_Unframed]]:
        """The ids of a run without control literals, and where they are not of the frame."""
        if escape in text:
            text, spans = without_escapes(text, spans, escape)
        if not spans:
            short = len(text) <= _FRAME_RUN_CHARS
            return self._short_frame_ids(text) if short else self._frame_ids(text), []
        if self._byte_level and len(spans) == 1:
            found = self._encode_bare(text, *spans[0])
            if found is not None:
                return found
        tokens, offsets = self._encode_plain(text)
        seen = np.zeros(len(text) + 1, dtype=np.int64)
        for start, end in spans:
            seen[start + 1 : end + 1] = 1
        np.cumsum(seen, out=seen)
        flat = itertools.chain.from_iterable(offsets)
        bounds = np.fromiter(flat, dtype=np.int64, count=2 * len(offsets)).reshape(-1, 2)
        framed = seen[bounds[:, 1]] == seen[bounds[:, 0]]
        return np.fromiter(tokens, dtype=np.int32, count=len(tokens)), [(0, len(tokens), framed)]

    def _encode_bare(
        self, text: str, start: int, end: int
    ) -> tuple[NDArray[np.int32], list[_Unframed]] | None:
        """Encode a run with one stretch of content, ``text[start:end]``, without offsets; None where it
        cannot be.

        What of the frame lies before and after the content is found by the lengths of the tokens, one
        character of a byte-level token for each byte.
        """
        lead, rest = text[:start], text[end:]
        plain = lead.isascii() and rest.isascii() and not unicodedata.combining(text[start])
        if not plain and not unicodedata.is_normalized("NFC", text):
            return None  # NFC writes a mark and the letter before it as one character
        ids = self._bare_ids(text)
        if ids is None:
            return None
        before = self._tokens_within(ids, len(lead.encode()))
        after = self._tokens_within(ids[::-1], len(rest.encode()))
        return ids, [(before, len(ids) - after, False)]

    def _bare_ids(self, text: str) -> NDArray[np.int32] | None:
        """The ids of a text alone: word by word, or, where threads are to run meanwhile, without the
        interpreter's lock; None where neither can be, or where a control id is among them."""
        if len(text) <= _WORDS_CHARS and self._words is not None:
            return self._words.ids(text)
        if not self._threads:
            return None
        ids: list[int] = self._plain.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return np.array(ids, dtype=np.int32) if self._control_set.isdisjoint(ids) else None

    @functools.cached_property
    def _bytes(self) -> IdBytes | None:
        return IdBytes.of(self._full, self._json)

    @functools.cached_property
    def _words(self) -> Words | None:
        return Words.of(self._plain, self._json, self._control_set)

    @functools.cached_property
    def _size(self) -> Callable[[int], int]:
        """The characters of an id's token."""
        return functools.cache(lambda token: len(self._plain.id_to_token(token) or ""))

    def _tokens_within(self, ids: NDArray[np.int32], size: int) -> int:
        """How many of the first tokens, int32 [T], lie wholly in the first ``size`` bytes."""
        ends = list(itertools.accumulate(map(self._size, ids[:size].tolist())))
        return bisect.bisect_right(ends, size)

    def _frame_ids(self, text: str) -> NDArray[np.int32]:
        """Ids int32 [T] of a run that holds no content, read-only."""
        ids = np.array(self._encode_plain(text)[0], dtype=np.int32)
        ids.flags.writeable = False
        return ids

    def _encode_plain(self, text: str) -> tuple[list[int], list[Span]]:
        """Encode with no control literal recognised.

        A vocabulary that holds a control literal as an ordinary piece could still make it: the text is then
        cut inside the piece.
        """
        encoding = self._plain.encode(text, add_special_tokens=False)
        tokens, offsets = encoding.ids, encoding.offsets
        if self._control_set.isdisjoint(tokens):
            return tokens, offsets
        start, end = next(offsets[i] for i, token in enumerate(tokens) if token in self._control_set)
        if end - start < 2:
            raise UnbreakableTokenError(text[start:end])
        cut = start + 1
        left, left_offsets = self._encode_plain(text[:cut])
        right, right_offsets = self._encode_plain(text[cut:])
        return left + right, left_offsets + [(a + cut, b + cut) for a, b in right_offsets]


def _is_byte_level(tokenizer: Json) -> bool:
    """Whether a token is as many characters as it stands for bytes."""
    splitter = tokenizer.get("pre_tokenizer") or {}
    last = (splitter.get("pretokenizers") or [{}])[-1] if splitter.get("type") == "Sequence" else splitter
    model = tokenizer.get("model") or {}
    normalizer = tokenizer.get("normalizer") or {"type": "NFC"}
    if normalizer.get("normalizers") == []:
        normalizer = {"type": "NFC"}
    return (
        model.get("type") == "BPE"
        and alphabet() <= model["vocab"].keys()
        and not model.get("continuing_subword_prefix")
        and not model.get("end_of_word_suffix")
        and normalizer.get("type") == "NFC"
        and last.get("type") == "ByteLevel"
        and not last.get("add_prefix_space")
    )


def _build(folder: TokenizerFolder, source: str, added: list[dict[str, Any]]) -> Tokenizer:
    """The tokenizer of a tokenizer.json's text with these added tokens."""
    source = source.replace(_NO_ADDED, f'"added_tokens": {json.dumps(added)}', 1)
    where = str(folder.path / "tokenizer.json")
    try:
        tokenizer = Tokenizer.from_str(source)
    except Exception as error:  # tokenizers raises plain Exception
        raise FolderError(
            where, f"the tokenizers library refuses it ({error})", "Update tokenizers or save the file again."
        ) from error
    for item in added:
        if tokenizer.token_to_id(str(item["content"])) != item["id"]:
            raise FolderError(
                where,
                f"the added token {item['content']!r} has id {item['id']}, which the vocabulary rules out",
                "Save the tokenizer again in its fast form, so that its files agree.",
            )
    return tokenizer
