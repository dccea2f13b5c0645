"""The blackbox agent: a closed program in the sandbox, driven by a state machine that stays outside."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from dressage_blackbox_server import (
    COMMAND,
    AgentAdapter,
    AgentSession,
    SessionConfig,
    TurnOutcome,
    TurnRecord,
)
from dressage_sandbox.errors import OutOfMemory, SandboxError, SandboxFileError
from dressage_sandbox.protocol import SandboxProvider

from dressage_paddock.agent import Scene
from dressage_paddock.errors import GatewayError, SandboxFailedError, TaskError
from dressage_paddock.events import OnEvent, ignore_event
from dressage_paddock.executor import SandboxExecutor
from dressage_paddock.failure import COMPLETED, Ending, FailureClass, Stage, classify
from dressage_paddock.gateway import GatewaySession, ModelGateway, ObservableGateway
from dressage_paddock.hooks import Hooks
from dressage_paddock.paddock import Paddock, PaddockConfig
from dressage_paddock.task import PublicTask


@dataclass(frozen=True, slots=True)
class BlackboxConfig:
    """How the program is run."""

    args: tuple[str, ...] = ()
    """The adapter's extra arguments; for ``command`` the program's whole argv."""
    model: str = "policy"
    env: Mapping[str, str] = field(default_factory=dict)
    output_bytes: int = 1 << 20
    """Kept of each stream of a turn."""
    context_tokens: int = 131072
    output_tokens: int = 8192


_CLASSES: Mapping[TurnOutcome, FailureClass] = {
    TurnOutcome.AGENT_FAILED: FailureClass.POLICY_FAILURE,
    TurnOutcome.TIMEOUT: FailureClass.TIMEOUT,
    TurnOutcome.OVERFLOW: FailureClass.OVERFLOW,
    TurnOutcome.CANCELLED: FailureClass.ABORTED,
    TurnOutcome.UNKNOWN: FailureClass.ABORTED,
    TurnOutcome.LAUNCH_FAILED: FailureClass.INFRASTRUCTURE,
    TurnOutcome.INFRASTRUCTURE: FailureClass.INFRASTRUCTURE,
}

_PROGRAMS_OWN = frozenset({FailureClass.COMPLETED, FailureClass.POLICY_FAILURE, FailureClass.TIMEOUT})
"""What a program's end is by itself: counted, unless it had no model."""


class BlackboxAgent:
    """Gives each task's user messages to the program as turns, one after the other.

    The program reaches the model through the sandbox's one relay, at the session's own path; no key, grader
    or control address is ever inside. Where ``gateway`` is observable, a program that failed before the model
    was ever reached, or that ended after a call which the gateway could not answer, is an infrastructure
    failure and not the policy's.
    """

    def __init__(
        self,
        *,
        adapter: AgentAdapter = COMMAND,
        config: BlackboxConfig | None = None,
        gateway: ModelGateway | None = None,
    ) -> None:
        self._adapter = adapter
        self._config = config or BlackboxConfig()
        observer: object = gateway
        self._observer = observer if isinstance(observer, ObservableGateway) else None
        if adapter is COMMAND and not self._config.args:
            raise TaskError("config.args is empty: give the command's argv, as ('python3', 'agent.py')")

    @property
    def speaks_as_model(self) -> bool:
        """False: what the program prints is not the model's own words."""
        return False

    def relay(self, session: GatewaySession) -> str | None:
        """The gateway's data plane, and nothing else."""
        parts = urlsplit(session.openai_url)
        if parts.scheme != "http" or parts.hostname is None:
            raise GatewayError(f"openai_url {session.openai_url!r} is not plain http: no relay reaches it")
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        return f"{host}:{parts.port or 80}"

    async def act(self, scene: Scene) -> Ending:
        """Run the turns until one ends badly or all are done."""
        executor = SandboxExecutor(scene.sandbox)
        async with AgentSession(
            scene.session.session_id, self._session(scene), self._adapter, executor
        ) as session:
            for number, prompt in enumerate(_prompts(scene.task)):
                turn = await session.turn(f"turn-{number}", prompt)
                scene.turns += 1
                scene.output = turn.output
                scene.emit("turn", outcome=str(turn.outcome), seconds=turn.duration_s)
                if turn.outcome is not TurnOutcome.OK:
                    # The first turn finds the sandbox as it was made, a later one as the program left it.
                    left_so = number > 0 and executor.refused_inside
                    return await self._bad_end(scene, turn, left_so=left_so)
        return await self._blamed(scene, COMPLETED)

    def _session(self, scene: Scene) -> SessionConfig:
        inside = scene.sandbox.relay_url
        if inside is None:
            raise SandboxFailedError("the provider gave no relay_url though the spec names a relay")
        return SessionConfig(
            agent=self._adapter.name,
            openai_url=inside + urlsplit(scene.session.openai_url).path,
            anthropic_url=inside + urlsplit(scene.session.anthropic_url).path,
            model=self._config.model,
            args=self._config.args,
            workdir=scene.task.workdir,
            env=self._config.env,
            turn_timeout_s=scene.task.limits.timeout_s,
            output_bytes=self._config.output_bytes,
            context_tokens=self._config.context_tokens,
            output_tokens=self._config.output_tokens,
        )

    async def _bad_end(self, scene: Scene, turn: TurnRecord, *, left_so: bool) -> Ending:
        """``left_so``: what failed is for what an earlier turn's program did to the sandbox."""
        outcome = turn.outcome or TurnOutcome.UNKNOWN
        failure_class = FailureClass.POLICY_FAILURE if left_so else _CLASSES[outcome]
        detail = f"{turn.detail}: {turn.stderr[-2000:].strip()}".rstrip(": ")
        if failure_class is FailureClass.INFRASTRUCTURE:
            if (died := await _died_of_memory(scene)) is not None:
                return died
            return Ending(failure_class, str(outcome), detail, retryable=True)
        if failure_class is FailureClass.POLICY_FAILURE:
            with suppress(SandboxFileError):  # it answers; the folder is as the program left it
                await scene.sandbox.list(scene.task.workdir)
        return await self._blamed(scene, Ending(failure_class, str(outcome), detail))

    async def _blamed(self, scene: Scene, ending: Ending) -> Ending:
        """The ending, or the infrastructure's where the program had no model. Raises where the gateway does
        not answer: then how the program ended says nothing of the policy."""
        if self._observer is None or ending.failure_class not in _PROGRAMS_OWN:
            return ending
        try:
            standing = await self._observer.get(scene.session.session_id)
        except Exception as error:
            raise GatewayError(f"the agent ended and the gateway does not answer: {error}") from error
        if ending.failure_class is FailureClass.POLICY_FAILURE and int(standing["steps"]) == 0:
            told = f"the agent failed before any model call was recorded: {ending.detail}"
            return Ending(FailureClass.INFRASTRUCTURE, "no_model_call", told, retryable=True)
        if faults := int(standing.get("faults", 0)):
            told = f"the agent ended after {faults} model calls that the gateway failed: {ending.detail}"
            return Ending(FailureClass.INFRASTRUCTURE, "no_model_answer", told, retryable=True)
        return ending


async def _died_of_memory(scene: Scene) -> Ending | None:
    """The ending where the program used up all that its sandbox may have."""
    try:
        await scene.sandbox.list(scene.task.workdir)
    except OutOfMemory as error:
        return classify(error, Stage.AGENT)
    except SandboxError:  # what the turn has told already
        return None
    return None


def _prompts(task: PublicTask) -> list[str]:
    """One prompt per user message; system text goes before the first."""
    prompts = [m.content for m in task.messages if m.role == "user"]
    if not prompts or any(m.role not in ("user", "system") for m in task.messages):
        raise TaskError("messages: a blackbox task has user messages (and system ones), and no other")
    if task.system:
        prompts[0] = f"{task.system}\n\n{prompts[0]}"
    return prompts


class BlackboxPaddock(Paddock):
    """A paddock whose agent is a closed program, run by a declarative adapter."""

    def __init__(
        self,
        provider: SandboxProvider,
        gateway: ModelGateway,
        *,
        adapter: AgentAdapter = COMMAND,
        blackbox: BlackboxConfig | None = None,
        config: PaddockConfig | None = None,
        hooks: Hooks | None = None,
        on_event: OnEvent = ignore_event,
    ) -> None:
        agent = BlackboxAgent(adapter=adapter, config=blackbox, gateway=gateway)
        super().__init__(provider, gateway, agent, config=config, hooks=hooks, on_event=on_event)
