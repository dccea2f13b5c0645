"""The tiny policy's tokenizer: a BPE trained on the task's own words, ChatML with Hermes tool calls."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

END, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CALL_TAGS = ("<tool_call>", "</tool_call>")

CHAT_TEMPLATE = """\
{%- if tools or messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content }}{%- endif %}
    {%- if tools and messages[0].role == 'system' %}{{- '\\n' }}{%- endif %}
    {%- if tools %}
        {{- 'Tools:' }}
        {%- for tool in tools %}
            {{- ' ' + tool.function.name + '(' + tool.function.parameters.properties | join(', ') + ')' }}
        {%- endfor %}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'system' and loop.first %}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' + message.content }}
        {%- for call in message.tool_calls or [] %}
            {%- if message.content or not loop.first %}{{- '\\n' }}{%- endif %}
            {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- (call.function.arguments | tojson) + '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""


def write_tokenizer(folder: Path, corpus: Iterable[str], *, vocabulary: int) -> Path:
    """Train on ``corpus`` and write tokenizer.json, its config and the chat template into ``folder``.

    Digits are never merged, so that a number is copied digit by digit. The same corpus gives the same ids.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    added = len(CALL_TAGS) + 3
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - added,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.add_special_tokens(
        [AddedToken(text, normalized=False, special=True) for text in (END, IM_START, IM_END)]
    )
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in CALL_TAGS])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": IM_END,
        "pad_token": END,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    return folder
