"""Infers a profile by rendering short conversations with the template itself."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from dressage_tito.appending import not_appendable
from dressage_tito.errors import FolderError, ProfileError
from dressage_tito.folder import TokenizerFolder
from dressage_tito.grammars import REASONING_TAGS
from dressage_tito.probe import ASK, OTHER, USER, WORD
from dressage_tito.profile import Profile, Retention
from dressage_tito.template import ChatTemplate, Json, RenderError
from dressage_tito.tool_probing import ToolProbe

if TYPE_CHECKING:
    from dressage_tito.tokens import Tokens


def infer_profile(
    folder: TokenizerFolder, template: ChatTemplate, tokens: Tokens, kwargs: Json | None = None
) -> Profile:
    """Probe the template. Raises ProfileError where it shows no assistant turn, and FolderError where the
    tokenizer cannot encode a word."""
    try:
        tokens.encode_plain(ASK)
    except Exception as error:  # tokenizers raises plain Exception
        raise FolderError(
            str(folder.path / "tokenizer.json"),
            f"the tokenizer cannot encode plain text ({error})",
            "Use a tokenizer that can write every text, such as a byte-level one.",
        ) from error
    return _Inference(folder, template, tokens, kwargs or {}).profile()


class _Inference(ToolProbe):
    def __init__(self, folder: TokenizerFolder, template: ChatTemplate, tokens: Tokens, kwargs: Json) -> None:
        super().__init__(template, kwargs, tokens)
        self._folder = folder
        self._source = "".join(folder.templates.values())
        eos = folder.special.get("eos_token")
        self._eos = eos if isinstance(eos, str) else ""

    def profile(self) -> Profile:
        prompt = self._generation_prompt()
        close, sampled_close = self._closings()
        self.arguments = self.find_arguments()
        shown = self.tools_shown()
        suffix, calls_close = self._call_closing(close) if shown.calls else ("", "")
        block, tags = self._reasoning(prompt)
        field = self._reasoning_field()
        bos = self._folder.special.get("bos_token")
        return Profile(
            turn_close_text=close,
            turn_close_ids=self._ids(close),
            stop_ids=self._stops(sampled_close, calls_close),
            generation_prompt=prompt,
            reasoning_tags=tags,
            reasoning_field=field,
            thinking_in_history=self._retention(field),
            tool_grammar=shown.grammar,
            bos="template" if isinstance(bos, str) and self._begins_once_with(bos) else "none",
            developer_role=WORD in (self.try_text([{"role": "developer", "content": WORD}, USER]) or ""),
            tools_in_tail=self.tools_in_tail(),
            calls_before_tool=self.calls_before_tool(),
            sampled_close_text=sampled_close,
            closing_stops=self._closing_stops(close, sampled_close),
            calls_close_text=calls_close,
            calls_close_ids=self._ids(calls_close),
            call_suffix=suffix,
            arguments_as=self.arguments,
            reasoning_block=block,
            inner_ids=self._inner_ids(prompt, suffix),
            not_appendable=MappingProxyType(not_appendable(self, shown.calls, block)),
            tool_result_needs=self.tool_result_needs(),
            parallel_calls=self.parallel_calls(),
            content_beside_calls=self.content_beside_calls(),
            trailing_prompt=bool(self.trailing),
            prints_tools=shown.tools,
            prints_calls=shown.calls,
            tools_note=shown.note,
        )

    def _ids(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokens.encode(text, (), "\0")[0].tolist())

    def _first_literal(self, text: str) -> str:
        match = self.tokens.literals.match(text)
        return match.group() if match else ""

    def _literal_ids(self, text: str) -> list[int]:
        return [self.tokens.control_ids[match.group()] for match in self.tokens.literals.finditer(text)]

    # A turn's ends

    def _generation_prompt(self) -> str:
        try:
            without, with_prompt = self.text([USER]), self.text([USER], generation=True)
        except RenderError as error:
            raise ProfileError(f"the chat template fails on a user message: {error}") from error
        if without == with_prompt and self.try_text([USER, self.reply()]) is not None:
            return self._find_trailing(without)
        if self._eos and not with_prompt.startswith(without):
            without = without.removesuffix(self._eos)  # a template for training ends with it
        if not with_prompt.startswith(without):
            raise ProfileError("the chat template's generation prompt is not a suffix of the conversation")
        return with_prompt[len(without) :]

    def _find_trailing(self, text: str) -> str:
        """A generation prompt that is printed in any case: what follows both a question and an answer."""
        after_user = text.rpartition(ASK)[2]
        after_reply = self.text([USER, self.reply()]).rpartition(WORD)[2]
        between = self.text([USER, self.reply()]).rpartition(ASK)[2].partition(WORD)[0]
        for size in range(min(len(after_user), len(after_reply)), 0, -1):
            common = after_user[-size:]
            if after_reply.endswith(common) and self._first_literal(common) and between != after_user:
                self.trailing = common
                break
        # What closes a question may be what closes an answer too: it is no part of the prompt.
        closing = after_user.removesuffix(self.trailing)
        while self.trailing and not closing:
            literal = self._first_literal(self.trailing)
            closing, self.trailing = literal, self.trailing[len(literal) :]
        return self.trailing

    def _closings(self) -> tuple[str, str]:
        """What follows an earlier reply's text, and what a model itself writes there."""
        try:
            last = self.text([USER, self.reply()])
        except RenderError as error:
            raise ProfileError(
                f"the chat template fails on a user and an assistant message: {error}"
            ) from error
        if last.count(WORD) != 1:
            raise ProfileError("the chat template does not print an assistant message's content once")
        after_last = last.partition(WORD)[2]
        earlier = self.try_text([USER, self.reply(), {"role": "user", "content": OTHER}], generation=True)
        if earlier is None or WORD not in earlier:
            return after_last, after_last
        after_earlier = earlier.partition(WORD)[2]
        if after_earlier.startswith(after_last):
            return after_last, after_last
        common = self.common(after_last, after_earlier)
        if common:
            return common, common
        return self._first_literal(after_earlier), after_last

    def _closing_stops(self, close: str, sampled_close: str) -> tuple[tuple[int, int], ...]:
        if not close or sampled_close == close:
            return ()
        sampled, printed = self._ids(sampled_close), self._ids(close)
        return ((sampled[0], printed[0]),) if len(sampled) == len(printed) == 1 else ()

    def _stops(self, sampled_close: str, calls_close: str) -> tuple[int, ...]:
        eos = self.tokens.id_of(self._eos) if self._eos else None
        declared = [token for token in (eos, *self._folder.eos_ids) if token is not None]
        stops: list[int] = []
        for text in (sampled_close, calls_close):
            ids = [token for token in self._ids(text) if self.tokens.is_control(token)]
            stops += [token for token in ids if token in declared][:1] or ids[:1]
        return tuple(dict.fromkeys([*stops, *declared]))

    def _call_closing(self, close: str) -> tuple[str, str]:
        """What the grammar prints after a call's last argument, and what closes a turn of calls."""
        last = self.try_text([USER, self.calls()], tools=True)
        if last is None or WORD not in last:
            return "", close
        after_last = last.rpartition(WORD)[2]
        earlier = self.try_text([USER, self.calls(), self.result()], generation=True, tools=True)
        after_earlier = after_last if earlier is None else earlier.rpartition(WORD)[2]
        common = self.common(after_last, after_earlier)
        if close and close in common:
            return common[: common.rindex(close)], close
        declared = {self._eos, *(self.tokens.decode([token]) for token in self._folder.eos_ids)}
        for match in self.tokens.literals.finditer(common):
            if match.group() in declared:
                return common[: match.start()], match.group()
        return common, ""

    def _inner_ids(self, prompt: str, suffix: str) -> frozenset[int]:
        ids = self._literal_ids(prompt) + self._literal_ids(suffix)
        for reply in (self.reply(), self.calls(), *map(self._thinking, ("thinking", "reasoning_content"))):
            text = self.try_text([USER, reply], tools="tool_calls" in reply)
            if text is not None:
                ids += self._literal_ids(text.rpartition(ASK)[2].rpartition(WORD)[0])
        return frozenset(ids)

    # Reasoning

    def _thinking(self, field: str, content: str = OTHER) -> Json:
        return {"role": "assistant", "content": content, field: WORD}

    def _reasoning_field(self) -> str:
        for field in ("reasoning_content", "reasoning", "thinking"):
            text = self.try_text([USER, self._thinking(field)])
            if text and WORD in text:
                return field
        return ""

    def _retention(self, field: str) -> Retention:
        if not field:
            return "none"
        text = self.try_text([USER, self._thinking(field), USER])
        return "keeps" if text and WORD in text else "strips"

    def _reasoning(self, prompt: str) -> tuple[tuple[str, str] | None, tuple[str, str] | None]:
        """What stands around reasoning in a render, and the tags that a parser looks for."""
        field = self._reasoning_field()
        seen = self._source + prompt
        if field:
            seen += self.text([USER, self._thinking(field)])
        for opening, closing in REASONING_TAGS:
            if (opening in seen and closing in seen) or (opening == "<think>" and closing in seen):
                return (opening, closing), (opening, closing)
        if not field:
            return None, None
        return self._block_by_difference(field), None

    def _block_by_difference(self, field: str) -> tuple[str, str] | None:
        without = self.text([USER, self.reply(OTHER)])
        whole = self.text([USER, self._thinking(field)])
        start = len(self.common(whole, without))
        end = 0
        while end < len(without) - start and whole[-end - 1] == without[-end - 1]:
            end += 1
        opening, word, closing = whole[start : len(whole) - end].partition(WORD)
        return (opening, closing) if word and opening and closing else None

    def _begins_once_with(self, bos: str) -> bool:
        """Whether a conversation begins with this text and holds it nowhere else (not a turn's opener)."""
        text = self.text([USER, self.reply("a")])
        return text.startswith(bos) and text.count(bos) == 1
