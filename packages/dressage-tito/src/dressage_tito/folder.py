"""Reads a Hugging Face tokenizer folder: tokenizer.json, config, chat template. Never asks a network."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from dressage_tito.errors import FolderError

MAX_IDS = 2**31
"""Ids are int32 everywhere: a vocabulary has no more."""

_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True, slots=True)
class TokenizerFolder:
    """What a folder holds. ``special`` maps ``bos_token``, ``eos_token``, … to their text."""

    path: Path
    tokenizer: dict[str, Any]
    tokenizer_hash: str
    templates: dict[str, str]
    template_hash: str
    special: dict[str, Any]
    eos_ids: tuple[int, ...]


def read_folder(path: str | Path) -> TokenizerFolder:
    """Read the folder. Raises FolderError, which names the file and the fix."""
    folder = Path(path)
    if not folder.is_dir():
        raise FolderError(str(folder), "no such folder", "Give the folder of a Hugging Face tokenizer.")
    tokenizer_file = folder / "tokenizer.json"
    if not tokenizer_file.is_file():
        raise FolderError(
            str(tokenizer_file),
            "missing",
            "Save the tokenizer in its fast form: AutoTokenizer.from_pretrained(…).save_pretrained(folder).",
        )
    tokenizer = _read_json(tokenizer_file)
    if not isinstance(tokenizer.get("model"), dict):
        raise FolderError(str(tokenizer_file), "holds no model", "Save the tokenizer again in its fast form.")
    config = _read_optional(folder / "tokenizer_config.json")
    special_map = _read_optional(folder / "special_tokens_map.json")
    templates = _templates(folder, config)
    return TokenizerFolder(
        path=folder,
        tokenizer=_with_config_tokens(tokenizer, config, tokenizer_file),
        tokenizer_hash=_digest(tokenizer_file.read_bytes()),
        templates=templates,
        template_hash=_digest(json.dumps(templates, sort_keys=True).encode()),
        special=_special_tokens({**special_map, **config}),
        eos_ids=_generation_eos(folder / "generation_config.json"),
    )


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise FolderError(
            str(path), f"cannot be read as JSON ({error})", "Fetch or save it again."
        ) from error
    if not isinstance(value, dict):
        raise FolderError(str(path), "is not a JSON object", "Fetch or save it again.")
    return value


def _read_optional(path: Path) -> dict[str, Any]:
    return _read_json(path) if path.is_file() else {}


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise FolderError(
            str(path), f"cannot be read ({error})", "Fetch or save it again as UTF-8."
        ) from error


def _templates(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """The named templates: chat_template.jinja wins over the config, as in the Hugging Face loaders."""
    found: dict[str, str] = {}
    value = config.get("chat_template")
    where = folder / "tokenizer_config.json"
    if isinstance(value, str):
        found["default"] = value
    elif isinstance(value, list):
        for index, item in enumerate(value):
            if not isinstance(item, dict) or not {"name", "template"} <= item.keys():
                raise FolderError(
                    str(where), f"chat_template[{index}] lacks name or template", "Give both as text."
                )
            found[str(item["name"])] = str(item["template"])
    elif value is not None:
        raise FolderError(str(where), "chat_template is neither text nor a list", "Give the template's text.")
    for file in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        found[file.stem] = _read_text(file)
    if (folder / "chat_template.jinja").is_file():
        found["default"] = _read_text(folder / "chat_template.jinja")
    if not any(text.strip() for text in found.values()):
        raise FolderError(
            str(folder),
            "no chat template in tokenizer_config.json (chat_template) nor in chat_template.jinja",
            "Put the model's template into chat_template.jinja; a base model needs one of your choice.",
        )
    return found


def _special_tokens(config: dict[str, Any]) -> dict[str, Any]:
    special: dict[str, Any] = {}
    for name in _SPECIAL_NAMES:
        text = _token_text(config.get(name))
        if text:
            special[name] = text
    more = config.get("additional_special_tokens")
    if isinstance(more, list):
        special["additional_special_tokens"] = [text for item in more if (text := _token_text(item))]
    return special


def _token_text(value: object) -> str:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def _generation_eos(file: Path) -> tuple[int, ...]:
    value = _read_optional(file).get("eos_token_id")
    values = value if isinstance(value, list) else [value]
    ids = tuple(item for item in values if _is_id(item))
    if len(ids) < len(values) and value is not None:
        raise FolderError(str(file), f"eos_token_id is {value!r}", "Give an id, or a list of ids.")
    return ids


def _with_config_tokens(tokenizer: dict[str, Any], config: dict[str, Any], file: Path) -> dict[str, Any]:
    """Add the tokens that only tokenizer_config.json declares (added_tokens_decoder)."""
    added = tokenizer.get("added_tokens") or []
    if not isinstance(added, list) or not all(_is_token(item) for item in added):
        raise FolderError(
            str(file),
            f"added_tokens is no list of objects with id (below {MAX_IDS}) and content",
            "Save the tokenizer again in its fast form.",
        )
    declared = config.get("added_tokens_decoder") or {}
    where = file.with_name("tokenizer_config.json")
    if not isinstance(declared, dict) or not all(map(_is_written_id, declared)):
        raise FolderError(
            str(where), "added_tokens_decoder is no object of tokens by id", "Save the tokenizer again."
        )
    known = {item["id"] for item in added}
    more = [
        _config_token(int(key), item)
        for key, item in declared.items()
        if isinstance(item, dict) and int(key) not in known
    ]
    return {**tokenizer, "added_tokens": sorted([*added, *more], key=lambda item: int(item["id"]))}


def _is_token(item: object) -> bool:
    return isinstance(item, dict) and _is_id(item.get("id")) and isinstance(item.get("content"), str)


def _is_id(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_IDS


def _is_written_id(text: str) -> bool:
    return text.isdecimal() and len(text) <= len(str(MAX_IDS)) and int(text) < MAX_IDS


def _config_token(token: int, item: dict[str, Any]) -> dict[str, Any]:
    flags = {
        name: bool(item.get(name, False))
        for name in ("single_word", "lstrip", "rstrip", "normalized", "special")
    }
    return {"id": token, "content": str(item.get("content")), **flags}
