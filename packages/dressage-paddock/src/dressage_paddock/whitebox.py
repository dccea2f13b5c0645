"""The whitebox agent: a Python loop of ours that asks the model, runs its tool calls, and asks again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import httpx
from dressage_sandbox.protocol import SandboxProvider

from dressage_paddock.agent import Scene
from dressage_paddock.chat import ChatClient
from dressage_paddock.errors import GatewayError, TaskError
from dressage_paddock.events import OnEvent, ignore_event
from dressage_paddock.failure import COMPLETED, Ending, FailureClass
from dressage_paddock.gateway import GatewaySession, ModelGateway
from dressage_paddock.hooks import Hooks
from dressage_paddock.messages import CallRequest
from dressage_paddock.paddock import Paddock, PaddockConfig
from dressage_paddock.toolcalls import call_tool, check_tools
from dressage_paddock.toolprotocol import CallOutcome, NativeCallProtocol, ToolProtocol
from dressage_paddock.tools import Tool, ToolBounds, default_tools


@dataclass(frozen=True, slots=True)
class WhiteboxConfig:
    """Settings of the loop."""

    model: str = "policy"
    """The model name in each request."""
    busy_retries: int = 5
    """How often a busy gateway (429, 5xx with Retry-After), or one whose connection broke, is asked again for
    one reply."""
    max_mistakes: int | None = None
    """So many wrong calls in a row (unknown tool, bad arguments, missing file) end the rollout as a policy
    failure; None never does."""

    def __post_init__(self) -> None:
        if self.max_mistakes is not None and self.max_mistakes < 1:
            raise TaskError(f"config.max_mistakes is {self.max_mistakes}: give 1 or more, or None")


class WhiteboxAgent:
    """Asks the model over the gateway's chat completions until it makes no call, or a limit ends it."""

    def __init__(
        self,
        http: httpx.AsyncClient,
        *,
        tools: Sequence[Tool] | None = None,
        protocol: ToolProtocol | None = None,
        config: WhiteboxConfig | None = None,
    ) -> None:
        self._http = http
        self._tools = tuple(default_tools() if tools is None else tools)
        check_tools(self._tools)
        self._protocol = protocol or NativeCallProtocol()
        self._schemas = self._protocol.schemas(self._tools)
        self._config = config or WhiteboxConfig()

    @property
    def speaks_as_model(self) -> bool:
        """True: the transcript's assistant messages are the model's own words."""
        return True

    def relay(self, session: GatewaySession) -> str | None:
        """None: the model is called from outside the sandbox."""
        return None

    async def act(self, scene: Scene) -> Ending:
        """The loop. Completed where a reply makes no call; truncated at ``max_turns`` or by length."""
        limits = scene.task.limits
        chat = ChatClient(
            self._http,
            scene.session.openai_url,
            model=self._config.model,
            max_tokens=limits.max_tokens,
            busy_retries=self._config.busy_retries,
        )
        scene.transcript.extend(scene.task.messages)
        mistakes = 0
        for _ in range(limits.max_turns):
            reply = await chat.complete(scene.transcript, self._schemas)
            scene.transcript.append(reply.message)
            scene.turns += 1
            scene.emit("reply", finish_reason=reply.finish_reason, calls=len(reply.message.tool_calls))
            if reply.finish_reason == "length":
                return Ending(FailureClass.TRUNCATED, "length", "a reply was cut by its token limit")
            if reply.finish_reason not in ("stop", "tool_calls"):
                raise GatewayError(f"a reply ended with finish reason {reply.finish_reason!r}")
            calls = self._protocol.calls(reply.message)
            if not calls:
                return COMPLETED
            outcomes = [await self._call(scene, call) for call in calls]
            scene.transcript.extend(self._protocol.results(outcomes))
            mistakes = mistakes + 1 if all(o.mistake for o in outcomes) else 0
            if self._config.max_mistakes is not None and mistakes >= self._config.max_mistakes:
                return Ending(FailureClass.POLICY_FAILURE, "mistakes", f"{mistakes} wrong calls in a row")
        return Ending(FailureClass.TRUNCATED, "max_turns", f"no end within {limits.max_turns} turns")

    async def _call(self, scene: Scene, call: CallRequest) -> CallOutcome:
        limits = scene.task.limits
        bounds = ToolBounds(limits.tool_timeout_s, limits.tool_output_bytes)
        text, mistake = await call_tool(self._tools, scene.sandbox, call.name, call.arguments, bounds)
        scene.emit("tool", tool=call.name, mistake=int(mistake))
        return CallOutcome(call, text, mistake)


class WhiteboxPaddock(Paddock):
    """A paddock whose agent is the whitebox loop.

    ``http`` is a pooled client that the caller owns and shares between paddocks.
    """

    def __init__(
        self,
        provider: SandboxProvider,
        gateway: ModelGateway,
        http: httpx.AsyncClient,
        *,
        tools: Sequence[Tool] | None = None,
        protocol: ToolProtocol | None = None,
        whitebox: WhiteboxConfig | None = None,
        config: PaddockConfig | None = None,
        hooks: Hooks | None = None,
        on_event: OnEvent = ignore_event,
    ) -> None:
        agent = WhiteboxAgent(http, tools=tools, protocol=protocol, config=whitebox)
        super().__init__(provider, gateway, agent, config=config, hooks=hooks, on_event=on_event)
