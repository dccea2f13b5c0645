"""The codec: conversations to token ids, and sampled ids back to turns."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dressage_tito.callnames import with_call_names
from dressage_tito.families import complete_profile
from dressage_tito.folder import TokenizerFolder, read_folder
from dressage_tito.following import Following
from dressage_tito.grammars import grammar_named
from dressage_tito.history import History
from dressage_tito.messages import Encoded, Message, ParsedTurn, Refusal, Tool
from dressage_tito.parse import Grammar, parse_text
from dressage_tito.probing import infer_profile
from dressage_tito.profile import Profile
from dressage_tito.refusals import refuse_appended, refuse_messages
from dressage_tito.rendering import Rendered, Renderer
from dressage_tito.template import ChatTemplate, Clock, RenderError, checked_kwargs
from dressage_tito.turns import TurnEnds
from dressage_tito.unbreakable import UnbreakableTokenError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dressage_tito.tokens import Tokens

    Ids = Sequence[int] | NDArray[np.int32]

ThinkingPolicy = Literal["keep", "as-template"]


class ChatCodec:
    """Token in, token out for one tokenizer and chat template.

    A codec holds no state of any conversation and may be shared by threads. It keeps what a model sampled
    (append-only): reasoning that the template would strip from history stays in the prefix.
    """

    def __init__(
        self,
        folder: TokenizerFolder,
        template: ChatTemplate,
        tokens: Tokens,
        profile: Profile,
        template_kwargs: Mapping[str, Any],
        declared: str | Path | Mapping[str, Any] | None = None,
    ) -> None:
        self._folder = folder
        self._template = template
        self._tokens = tokens
        self._kwargs = dict(template_kwargs)
        self._declared = declared
        self._renderer = Renderer(template, tokens.literals, profile)
        self._ends = TurnEnds(profile, tokens)
        self._history = History(profile, tokens, self._renderer)
        self._following = Following(template, profile, tokens)
        self.profile = profile

    @classmethod
    def from_folder(
        cls,
        path: str | Path,
        *,
        template_kwargs: Mapping[str, Any] | None = None,
        clock: Clock = datetime.now,
        threads: bool = False,
        profile: str | Path | Mapping[str, Any] | None = None,
    ) -> ChatCodec:
        """Load a Hugging Face tokenizer folder; no network is asked.

        ``template_kwargs`` (e.g. ``{"enable_thinking": False}``) hold for every call. ``clock`` answers
        templates that print a date. With ``threads`` a byte-level tokenizer encodes without the interpreter's
        lock, so that threads encode side by side; set TOKENIZERS_PARALLELISM=false before, or the tokenizers
        library starts threads of its own and complains when the process forks.

        ``profile`` is a TOML file (or its table) of what the template does not show; it wins over what is
        inferred and over what the package declares. Keys that are not known are refused by name.

        Raises FolderError (names the file and the fix) or ProfileError.
        """
        from dressage_tito.tokens import Tokens  # loads numpy and tokenizers: not at import

        kwargs = checked_kwargs(template_kwargs)
        folder = read_folder(path)
        template = ChatTemplate(folder.templates, folder.special, clock, str(folder.path))
        tokens = Tokens(folder, threads=threads)
        found = complete_profile(infer_profile(folder, template, tokens, kwargs), folder, tokens, profile)
        return cls(folder, template, tokens, found, kwargs, profile)

    def with_template_kwargs(self, template_kwargs: Mapping[str, Any]) -> ChatCodec:
        """The same tokenizer and template under other arguments; the profile is inferred anew, and what
        ``from_folder`` was given of it wins again."""
        kwargs = checked_kwargs(template_kwargs)
        inferred = infer_profile(self._folder, self._template, self._tokens, kwargs)
        profile = complete_profile(inferred, self._folder, self._tokens, self._declared)
        return ChatCodec(self._folder, self._template, self._tokens, profile, kwargs, self._declared)

    def with_profile(self, profile: Profile) -> ChatCodec:
        """The same codec under another profile (``dataclasses.replace(codec.profile, …)``)."""
        return ChatCodec(self._folder, self._template, self._tokens, profile, self._kwargs, self._declared)

    @property
    def supports_tools(self) -> bool:
        """Whether ``start`` takes tools."""
        return self.profile.supports_tools

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Ids at which an engine must stop a turn."""
        return self.profile.stop_ids

    @property
    def vocab_size(self) -> int:
        """The highest id + 1."""
        return self._tokens.vocab_size

    @property
    def control_ids(self) -> frozenset[int]:
        """Ids that only the template's frame (or the model itself) may produce."""
        return frozenset(self._tokens.control_ids.values())

    @property
    def control_literals(self) -> frozenset[str]:
        """Their texts."""
        return frozenset(self._tokens.control_ids)

    @property
    def tokenizer_hash(self) -> str:
        """blake2b-128 of tokenizer.json."""
        return self._folder.tokenizer_hash

    @property
    def template_hash(self) -> str:
        """blake2b-128 of the chat templates."""
        return self._folder.template_hash

    @property
    def profile_hash(self) -> str:
        """blake2b-128 of the profile and of the template's arguments: what a certificate is bound to."""
        text = repr((self.profile.stated(), sorted(self._kwargs.items())))
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    @property
    def name(self) -> str:
        """The folder's name."""
        return self._folder.path.resolve().name

    @property
    def template_kwargs(self) -> dict[str, Any]:
        """The template's arguments that hold for every call."""
        return dict(self._kwargs)

    @property
    def bos_id(self) -> int | None:
        """The begin-of-sequence id where the template prints it, once, at the start; None elsewhere."""
        return (
            self._tokens.id_of(self._folder.special["bos_token"]) if self.profile.bos == "template" else None
        )

    @property
    def eos_text(self) -> str:
        """The tokenizer's end-of-sequence token; "" where it names none."""
        return str(self._folder.special.get("eos_token", ""))

    def native_call_id(self, name: str, index: int) -> str:
        """The id that the model's grammar gives its call number ``index``; "" where it carries none."""
        return grammar_named(self.profile.tool_grammar).call_id(name, index)

    def decode(self, ids: Ids) -> str:
        """All ids as text, control ids spelled out; bytes that are no UTF-8 become U+FFFD."""
        return self._tokens.decode(ids)

    def encode_sample(self, text: str) -> list[int]:
        """The canonical ids of a model's own text, control literals as control ids.

        For examples, tests and supervised targets alone: what an engine sampled is never encoded again.
        """
        return self._tokens.encode_reference(text)

    def encode_plain(self, text: str) -> list[int]:
        """The ids of a text in which no control literal is recognised."""
        return self._tokens.encode_plain(text)

    def reference_text(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] | None = None,
        *,
        generation: bool = True,
    ) -> str | Refusal:
        """The template's own render of a whole conversation, as Hugging Face tokenizers give it.

        For comparison: content is not kept from spelling control literals here.
        """
        try:
            return self._renderer.reference(self._roles(messages), tools, self._kwargs, generation=generation)
        except RenderError as error:
            return Refusal("template_error", str(error))

    def start(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] | None = None,
        *,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> Encoded | Refusal:
        """The ids of a whole conversation up to and including the generation prompt.

        They equal the ids of the template's full render where no content spells a control literal; where
        one does, it is encoded as plain text. Raises ValueError where ``template_kwargs`` are not allowed.
        """
        kwargs = {**self._kwargs, **checked_kwargs(template_kwargs)}
        refusal = refuse_messages(self.profile, messages, tools)
        if not messages or refusal is not None:
            return refusal or Refusal("no_messages", "messages is empty: give at least one")
        rendered = self._renderer.render(self._roles(messages), tools, kwargs)
        return rendered if isinstance(rendered, Refusal) else self._encoded(rendered)

    def extend(
        self,
        prefix_ids: Ids,
        appended: Sequence[Message],
        tools: Sequence[Tool] | None = None,
        *,
        template_kwargs: Mapping[str, Any] | None = None,
        thinking: ThinkingPolicy = "keep",
    ) -> Encoded | Refusal:
        """The ids to append to ``prefix_ids`` (what the engine saw and sampled, ending in a sampled turn).

        They close the turn where it is not closed, add the appended messages and the generation prompt; with
        none the model's next turn follows its last one, where the template prints two such turns just so.
        Only the prefix's last ids are looked at; the cost depends on what is new alone.

        ``thinking`` is the session's policy: ``keep`` leaves sampled reasoning in the context;
        ``as-template`` gives a Refusal (``thinking_stripped``, ``stop_rewritten``) exactly where the template
        would write earlier tokens in another way, so that a new segment begins; the reasoning since the last
        user message is then looked for, once.
        """
        kwargs = {**self._kwargs, **checked_kwargs(template_kwargs)}
        appended = with_call_names(self.profile, self._tokens, prefix_ids, appended, tools)
        refusal = refuse_messages(self.profile, appended, tools) or refuse_appended(
            self.profile, appended, tools
        )
        if refusal is not None or len(prefix_ids) == 0:
            return refusal or Refusal("empty_prefix", "prefix_ids is empty: use start for the first call")
        said = self._roles(appended)
        if thinking == "as-template":
            refusal = self._history.rewritten(prefix_ids, said, tools, kwargs)
            if refusal is not None:
                return refusal
        tail = (
            self._renderer.tail(said, tools, kwargs)
            if said
            else self._following.tail(prefix_ids, kwargs, tools=bool(tools))
        )
        encoded = tail if isinstance(tail, Refusal) else self._encoded(tail)
        return encoded if isinstance(encoded, Refusal) else self._ends.joined(prefix_ids, encoded)

    def parse(
        self,
        ids: Ids,
        *,
        reasoning_open: bool,
        finish_reason: str,
        tools: Sequence[Tool] | None = None,
    ) -> ParsedTurn:
        """A sampled turn (with or without its closing id) as content, reasoning and tool calls.

        ``reasoning_open`` is that of the ``Encoded`` that the turn was sampled after; ``finish_reason`` is
        the engine's (``stop``, ``length``, ``abort``). A pure function of the whole turn: how its ids
        arrived changes nothing. Calls are parsed only where tools were offered; names that were not are
        forwarded as they are.
        """
        values = self._ends.unclosed(ids)
        grammar = Grammar(self.profile.reasoning_tags, self.profile.tool_grammar)
        return parse_text(
            self.decode(values),
            grammar,
            reasoning_open=reasoning_open,
            finish_reason=finish_reason,
            tools=tools,
        )

    def tools_hash(self, tools: Sequence[Tool] | None) -> str:
        """blake2b-128 of the tool list as it would be printed (order and numbers kept); "" for none."""
        if not tools:
            return ""
        text = json.dumps(list(tools), ensure_ascii=False)
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

    def _roles(self, messages: Sequence[Message]) -> list[Message]:
        """Developer messages as system messages where the template knows no developer."""
        if self.profile.developer_role:
            return list(messages)
        return [
            Message("system", message.content, name=message.name) if message.role == "developer" else message
            for message in messages
        ]

    def _encoded(self, rendered: Rendered) -> Encoded | Refusal:
        try:
            ids, frame = self._tokens.encode(rendered.text, rendered.spans, rendered.marks.escape)
        except UnbreakableTokenError as error:
            return Refusal("control_in_content", f"content can only be written with the control id {error}")
        return Encoded(ids, frame, reasoning_open=self._reasoning_open(rendered))

    def _reasoning_open(self, rendered: Rendered) -> bool:
        """Whether the frame after the last content leaves a reasoning block open."""
        if self.profile.reasoning_tags is None:
            return False
        opening, closing = self.profile.reasoning_tags
        tail = rendered.text[rendered.spans[-1][1] if rendered.spans else 0 :]
        return tail.rfind(opening) > tail.rfind(closing)
