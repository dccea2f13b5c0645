"""One run of the local recipe from a configuration to its summary."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import secrets
import shutil
import threading
import time
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from pathlib import Path

import httpx
import torch
from dressage_proxy.client import ProxyClient
from dressage_sandbox import BubblewrapProvider, PooledProvider, SandboxProvider
from transformers import PreTrainedModel
from transformers.utils import logging as transformers_logging

from dressage_recipes.events import Event, Note, OnEvent, Phase, Progress
from dressage_recipes.local.coldstart import ColdStarter
from dressage_recipes.local.config import LocalConfig, to_toml
from dressage_recipes.local.failures import FailureLog
from dressage_recipes.local.loop import Loop, Parts
from dressage_recipes.local.metrics import Metrics, open_metrics
from dressage_recipes.local.policy import check_prompts, hub_folder, load_policy, make_tiny
from dressage_recipes.local.processes import Service, engine_service, proxy_service
from dressage_recipes.local.rollouts import Collector
from dressage_recipes.local.scratch import scratch_folder
from dressage_recipes.local.stalls import watching
from dressage_recipes.local.summary import Account, Summary
from dressage_recipes.local.trainer import GrpoTrainer
from dressage_recipes.local.transcripts import Transcripts
from dressage_recipes.local.work import Source, open_source

LEAVE_S = 1.0
"""How long rollouts under way may take to end in order when the run stops; then its services end."""


def ignore_event(event: Event) -> None:
    """The default listener: does nothing."""


def run_demo(
    config: LocalConfig, *, on_event: OnEvent = ignore_event, setup_seconds: float | None = None
) -> Summary:
    """Run ``config`` in ``config.out``, which then holds summary.json, steps.jsonl, transcripts.jsonl,
    config.toml, the store and checkpoints/final.

    Ctrl-C ends it in order: sandboxes, processes and temporary files go. Raises RecipeError's kinds.
    """
    transformers_logging.disable_progress_bar()
    torch.set_num_threads(config.training.threads)
    started = time.perf_counter()
    out = config.out
    (out / "logs").mkdir(parents=True, exist_ok=True)
    (out / "config.toml").write_text(to_toml(config), encoding="utf-8")
    account, stop = Account(), threading.Event()
    with scratch_folder() as scratch:
        run = _Run(config, scratch, account, on_event, stop)
        peak_kib = asyncio.run(run.main())
    summary = account.summary(
        seconds=time.perf_counter() - started,
        setup_seconds=setup_seconds,
        seed=config.seed,
        model=config.model.path or "tiny",
        peak_rss_mib=peak_kib / 1024,
    )
    summary.write(out / "summary.json")
    return summary


@dataclass(frozen=True, slots=True)
class _Run:
    config: LocalConfig
    scratch: Path
    account: Account
    on_event: OnEvent
    stop: threading.Event

    async def main(self) -> int:
        """The whole run; gives the peak memory of its processes together in KiB."""
        try:
            return await self._main()
        finally:
            # A thread that computes looks at this between two batches; without it the end would wait for it.
            self.stop.set()

    async def _main(self) -> int:
        config = self.config
        self.on_event(Phase("preparing the policy"))
        source = open_source(config)
        folder, model = await asyncio.to_thread(self._policy, source)
        async with contextlib.AsyncExitStack() as stack:
            sandboxes = BubblewrapProvider()
            provider: SandboxProvider = sandboxes
            stack.push_async_callback(sandboxes.close)
            async with asyncio.TaskGroup() as tasks:
                services = tasks.create_task(self._start(stack, folder))
                if source.sandbox is not None:
                    pool = PooledProvider(sandboxes, source.sandbox, config.rollouts.concurrency)
                    provider = pool
                    stack.push_async_callback(pool.close)
                    tasks.create_task(pool.fill())
                tasks.create_task(self._cold_start(folder, model))
            engine, proxy = services.result()
            client = await self._connect(stack, proxy)
            loop, trainer = await self._assemble(stack, model, source, provider, client, engine)
            if not config.model.path:
                await loop.push()
            self.on_event(Phase("training", config.steps))
            async with watching(source.files, lambda told: self.on_event(Note(told))):
                await self._unless_died(loop.run(), client, engine, proxy)
            await asyncio.to_thread(self._save, trainer, folder)
            for service in (engine, proxy):
                service.measure()
            own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            return own + engine.peak_rss_kib + proxy.peak_rss_kib

    def _policy(self, source: Source) -> tuple[Path, PreTrainedModel]:
        """The model, and a folder that has its files and its tokenizer."""
        named = self.config.model.path
        folder = Path(named) if named and Path(named).is_dir() else self.scratch / "policy"
        if not named:
            model = make_tiny(self.config, folder)
        else:
            if not folder.exists():
                hub_folder(named, folder)
            model = load_policy(self.config, folder)
        check_prompts(self.config, source, folder)
        return folder, model

    async def _start(self, stack: contextlib.AsyncExitStack, folder: Path) -> tuple[Service, Service]:
        config, logs = self.config, self.config.out / "logs"
        key_file = self.scratch / "control.key"
        key_file.touch(mode=0o600)
        key_file.write_text(secrets.token_urlsafe(32), encoding="ascii")
        engine = await stack.enter_async_context(
            engine_service(
                folder,
                logs / "engine.log",
                slots=config.engine.slots,
                context_length=config.engine.context_length,
                retain_mib=config.engine.retain_mib,
                threads=config.engine.threads,
                dtype=config.model.dtype,
                seed=config.seed,
            )
        )
        proxy = await stack.enter_async_context(
            proxy_service(
                folder,
                str(engine.ready["url"]),
                config.out / "store",
                key_file,
                logs / "proxy.log",
                context=config.engine.context_length,
                reply=config.tasks.max_tokens,
            )
        )
        # Both at once: nothing is in flight by then, and Ctrl-C should not wait for one after the other.
        stack.push_async_callback(_end_all, engine, proxy)
        return engine, proxy

    async def _cold_start(self, folder: Path, model: PreTrainedModel) -> None:
        config = self.config
        if config.model.path:
            return
        self.on_event(Phase("cold start", config.cold_start.steps))
        starter = ColdStarter(
            model, folder, config.cold_start, config.tasks, seed=config.seed, stop=self.stop
        )
        loop = asyncio.get_running_loop()

        def told(step: int, loss: float) -> None:
            loop.call_soon_threadsafe(self.on_event, Progress(step, f"loss {loss:.2f}"))

        began = time.perf_counter()
        reward = await asyncio.to_thread(starter.run, told)
        self.account.cold_start |= {"seconds": time.perf_counter() - began, "reward": reward}

    async def _connect(self, stack: contextlib.AsyncExitStack, proxy: Service) -> ProxyClient:
        key = (self.scratch / "control.key").read_text(encoding="ascii")
        # Little patience: a proxy that is gone ends the run, and is nothing for Ctrl-C to wait for.
        return await stack.enter_async_context(
            ProxyClient(str(proxy.ready["control_url"]), key, patience_s=0.5)
        )

    async def _assemble(
        self,
        stack: contextlib.AsyncExitStack,
        model: PreTrainedModel,
        source: Source,
        provider: SandboxProvider,
        client: ProxyClient,
        engine: Service,
    ) -> tuple[Loop, GrpoTrainer]:
        config = self.config
        http = await stack.enter_async_context(
            httpx.AsyncClient(limits=httpx.Limits(max_connections=256), trust_env=False)
        )
        paddock = await stack.enter_async_context(source.paddock(provider, client, http))
        weights = self.scratch / "weights"
        weights.mkdir()
        trainer = GrpoTrainer(model, config.trainer(), stop=self.stop)
        parts = Parts(
            trainer=trainer,
            source=source,
            collector=Collector(paddock, client, config),
            client=client,
            http=http,
            engine_url=str(engine.ready["url"]),
            weights=weights,
            metrics=await stack.enter_async_context(_metrics(config)),
            failures=FailureLog(config.out / "failures.jsonl"),
            transcripts=Transcripts(config.out / "transcripts.jsonl"),
        )
        return Loop(config, parts, self.account, self.on_event), trainer

    async def _unless_died(
        self, work: Coroutine[None, None, None], client: ProxyClient, *services: Service
    ) -> None:
        """Do ``work``; where a service dies meanwhile, stop it and raise the ServiceError that says so."""
        main = asyncio.ensure_future(work)
        watches = [asyncio.ensure_future(service.died()) for service in services]
        try:
            done, _ = await asyncio.wait((main, *watches), return_when=asyncio.FIRST_COMPLETED)
            for task in (*watches, main):
                if task in done:
                    task.result()
        finally:
            self.stop.set()  # a training step under way ends meanwhile
            for task in (main, *watches):
                task.cancel()
            await asyncio.wait({main}, timeout=LEAVE_S)
            if not main.done():
                # A rollout that ends waits for the proxy, and that for an engine in the middle of a batch.
                await client.close()
            await asyncio.gather(main, *watches, return_exceptions=True)

    def _save(self, trainer: GrpoTrainer, folder: Path) -> None:
        final = self.config.out / "checkpoints" / "final"
        final.mkdir(parents=True, exist_ok=True)
        trainer.save(final)
        for path in folder.glob("tokenizer*"):
            shutil.copy2(path, final)
        for name in ("chat_template.jinja", "special_tokens_map.json", "vocab.json", "merges.txt"):
            if (folder / name).is_file():
                shutil.copy2(folder / name, final)


async def _end_all(*services: Service) -> None:
    await asyncio.gather(*(service.end() for service in services))


@contextlib.asynccontextmanager
async def _metrics(config: LocalConfig) -> AsyncIterator[tuple[Metrics, ...]]:
    places = open_metrics(
        config.out / "steps.jsonl", config.tracker, config.out.name, config.model_dump(mode="json")
    )
    try:
        yield tuple(places)
    finally:
        for place in places:
            place.close()
