"""``python -m dressage_recipes.local.engine --model DIR``: one CPU engine on a loopback port."""

from __future__ import annotations

import argparse
import asyncio
import atexit
import gc
import json
import signal
import socket
import sys
from pathlib import Path

import torch
import uvicorn
from transformers import AutoModelForCausalLM

from dressage_recipes.local.engine.batch import BatchEngine
from dressage_recipes.local.engine.errors import EngineError, ModelFolderError
from dressage_recipes.local.engine.server import EngineServer, Stepper

_MIB = 1 << 20
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def main(argv: list[str] | None = None) -> int:
    """Exit code 0 after SIGTERM or SIGINT, 2 where the model folder cannot be used."""
    parser = argparse.ArgumentParser(prog="dressage_recipes.local.engine")
    parser.add_argument("--model", type=Path, required=True, help="folder of a Hugging Face causal LM")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--slots", type=int, default=64, help="requests that are decoded at a time")
    parser.add_argument("--context-length", type=int, default=2048)
    parser.add_argument("--retain-mib", type=int, default=256, help="keys of finished requests, for reuse")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=sorted(_DTYPES), default="float32")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    # The interpreter would look through all of torch for garbage before it leaves, and the loop waits for it.
    atexit.register(gc.freeze)
    try:
        return _serve(args)
    except (EngineError, OSError) as error:
        print(f"engine: {error}", file=sys.stderr)
        return 2


def _serve(args: argparse.Namespace) -> int:
    torch.set_num_threads(args.threads)
    if not (args.model / "config.json").is_file():
        raise ModelFolderError(f"--model {args.model} has no config.json: give a Hugging Face model folder")
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=_DTYPES[args.dtype])
    engine = BatchEngine(
        model,
        slots=args.slots,
        context_length=args.context_length,
        retain_bytes=args.retain_mib * _MIB,
        seed=args.seed,
    )
    stepper = Stepper(engine)
    sock = socket.create_server((args.host, args.port), backlog=2048)
    url = f"http://{args.host}:{sock.getsockname()[1]}"
    stepper.start()
    try:
        asyncio.run(_run(args, stepper, model.config.vocab_size, sock, url))
    finally:
        stepper.stop()
        sock.close()
    return 0


def server_config(app: object) -> uvicorn.Config:
    """How it is served. An idle connection is the client's to close: where both sides give it up after the
    same time, a request may be sent on one that just ended, and the run would end with it."""
    return uvicorn.Config(
        app,  # type: ignore[arg-type]
        lifespan="off",
        access_log=False,
        log_level="warning",
        timeout_graceful_shutdown=1,
        timeout_keep_alive=75,
    )


async def _run(
    args: argparse.Namespace, stepper: Stepper, vocab_size: int, sock: socket.socket, url: str
) -> None:
    routes = EngineServer(
        stepper, model_path=str(args.model), context_length=args.context_length, vocab_size=vocab_size
    )
    server = uvicorn.Server(server_config(routes.app()))
    serving = asyncio.create_task(server.serve([sock]))
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, setattr, server, "should_exit", True)
    while not server.started and not serving.done():  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.005)
    print(json.dumps({"event": "ready", "url": url}), flush=True)
    await serving


if __name__ == "__main__":
    sys.exit(main())
