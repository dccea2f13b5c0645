"""Agent rollouts, whitebox and blackbox, that always end their sandbox lease."""

from dressage_paddock.agent import Agent, Scene
from dressage_paddock.blackbox import BlackboxAgent, BlackboxConfig, BlackboxPaddock
from dressage_paddock.errors import (
    ContextOverflowError,
    GatewayError,
    GatewayRefusedError,
    GraderFailedError,
    InfrastructureError,
    PaddockError,
    RolloutStateError,
    SandboxFailedError,
    StageError,
    StageTimeoutError,
    TaskError,
    ToolError,
)
from dressage_paddock.events import OnEvent, RolloutEvent
from dressage_paddock.executor import SandboxExecutor
from dressage_paddock.failure import Ending, FailureClass, Stage, classify
from dressage_paddock.gateway import GatewaySession, ModelGateway, ObservableGateway
from dressage_paddock.messages import CallRequest, ChatMessage
from dressage_paddock.paddock import Paddock, PaddockConfig
from dressage_paddock.result import FinalizeInfo, Grader, GradeView, RolloutResult
from dressage_paddock.retry import run_with_retries
from dressage_paddock.rollout import Rollout
from dressage_paddock.task import GraderOnly, PublicTask, RunnerOnly, Task, TaskLimits
from dressage_paddock.toolprotocol import CallOutcome, NativeCallProtocol, TextCallProtocol, ToolProtocol
from dressage_paddock.tools import (
    ReadTool,
    ShellTool,
    Tool,
    ToolBounds,
    WriteTool,
    default_tools,
    tool_schema,
)
from dressage_paddock.whitebox import WhiteboxAgent, WhiteboxConfig, WhiteboxPaddock

__all__ = [
    "Agent",
    "BlackboxAgent",
    "BlackboxConfig",
    "BlackboxPaddock",
    "CallOutcome",
    "CallRequest",
    "ChatMessage",
    "ContextOverflowError",
    "Ending",
    "FailureClass",
    "FinalizeInfo",
    "GatewayError",
    "GatewayRefusedError",
    "GatewaySession",
    "GradeView",
    "Grader",
    "GraderFailedError",
    "GraderOnly",
    "InfrastructureError",
    "ModelGateway",
    "NativeCallProtocol",
    "ObservableGateway",
    "OnEvent",
    "Paddock",
    "PaddockConfig",
    "PaddockError",
    "PublicTask",
    "ReadTool",
    "Rollout",
    "RolloutEvent",
    "RolloutResult",
    "RolloutStateError",
    "RunnerOnly",
    "SandboxExecutor",
    "SandboxFailedError",
    "Scene",
    "ShellTool",
    "Stage",
    "StageError",
    "StageTimeoutError",
    "Task",
    "TaskError",
    "TaskLimits",
    "TextCallProtocol",
    "Tool",
    "ToolBounds",
    "ToolError",
    "ToolProtocol",
    "WhiteboxAgent",
    "WhiteboxConfig",
    "WhiteboxPaddock",
    "WriteTool",
    "classify",
    "default_tools",
    "run_with_retries",
    "tool_schema",
]
