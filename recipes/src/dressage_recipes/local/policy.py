"""The policy: the tiny model that the demo makes, or one from a folder."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import torch
from dressage_paddock import Task
from dressage_tito import ChatCodec, Message, NotCertifiedError, Refusal, TitoError, require_certified
from dressage_tito.certify import certify_codec
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from dressage_recipes.errors import UsageError
from dressage_recipes.local.coldstart import corpus
from dressage_recipes.local.config import LocalConfig
from dressage_recipes.local.tokenizer import write_tokenizer
from dressage_recipes.local.work import Source

_CONVERSATIONS = 45
"""So many made-up conversations certify a tokenizer that is not known yet: a second or a few."""
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def make_tiny(config: LocalConfig, folder: Path) -> PreTrainedModel:
    """A fresh model and its tokenizer, saved in ``folder``; the seed decides the weights."""
    size = config.model
    write_tokenizer(folder, corpus(config.tasks.weights), vocabulary=size.vocabulary)
    torch.manual_seed(config.seed)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=size.vocabulary,
            hidden_size=size.hidden,
            intermediate_size=size.feed_forward,
            num_hidden_layers=size.layers,
            num_attention_heads=size.heads,
            num_key_value_heads=size.heads,
            head_dim=size.hidden // size.heads,
            max_position_embeddings=config.engine.context_length,
            tie_word_embeddings=True,
            initializer_range=size.init_std,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
        )
    ).float()
    model.save_pretrained(folder)
    return cast(PreTrainedModel, model)


def load_policy(config: LocalConfig, folder: Path) -> PreTrainedModel:
    """The causal LM in ``folder``, in the configured dtype. Raises UsageError where it cannot be loaded."""
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=_DTYPES[config.model.dtype])
    except (OSError, ValueError, KeyError) as error:
        first = str(error).strip().splitlines()[0]
        raise UsageError(f"the model {folder}: {first}", fix="give a folder with a causal LM") from error
    limit = getattr(model.config, "max_position_embeddings", None)
    if limit is not None and limit < config.engine.context_length:
        raise UsageError(
            f"engine.context_length is {config.engine.context_length}, but the model ends at {limit}",
            fix="lower it",
        )
    return cast(PreTrainedModel, model)


def hub_folder(name: str, folder: Path) -> Path:
    """Fetch a model by its hub's name into ``folder``. Raises UsageError where there is no hub."""
    try:
        AutoTokenizer.from_pretrained(name).save_pretrained(folder)
        AutoModelForCausalLM.from_pretrained(name).save_pretrained(folder)
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise UsageError(f"the model {name}: {first}", fix="give a local folder") from error
    return folder


def check_prompts(config: LocalConfig, source: Source, folder: Path) -> None:
    """Raise UsageError where the model's template cannot show a task, or where one does not fit."""
    try:
        codec = ChatCodec.from_folder(folder)
    except TitoError as error:
        raise UsageError(
            f"the model {folder}: {error}", fix="give an instruct model with a chat template"
        ) from error
    _check_certified(codec, config.model.uncertified)
    tools = source.schemas()
    for task in source.examples():
        messages = [Message(message.role, message.content) for message in task.public().messages]
        prompt = codec.start(messages, tools)
        if isinstance(prompt, Refusal):
            raise UsageError(
                f"the model {folder}: its chat template cannot show {task.instance_id!r}: {prompt.detail}",
                fix="mend the task, or set tasks.protocol to text for a model without tool calls",
            )
        _check_room(task, len(prompt.ids), config)


def _check_room(task: Task, tokens: int, config: LocalConfig) -> None:
    if tokens + config.tasks.max_tokens > config.engine.context_length:
        raise UsageError(
            f"the prompt of {task.instance_id} has {tokens} tokens and a reply up to "
            f"{config.tasks.max_tokens}, but the context is {config.engine.context_length}",
            fix="raise engine.context_length, or lower tasks.max_tokens",
        )


def _check_certified(codec: ChatCodec, override: str) -> None:
    """Certify here what is not known yet: a template that the codec gets wrong must not be trained on."""
    try:
        require_certified(codec, override=override)
    except NotCertifiedError as unknown:
        report = certify_codec(codec, codec.name, conversations=_CONVERSATIONS)
        if not report.certified:
            first = f": {report.failures[0].check}: {report.failures[0].detail}" if report.failures else ""
            raise UsageError(
                f"the tokenizer and chat template of {codec.name!r} fail certification{first}",
                fix=f"see `dressage-tito certify`, or set model.uncertified to {codec.name!r} in a recipe",
            ) from unknown
