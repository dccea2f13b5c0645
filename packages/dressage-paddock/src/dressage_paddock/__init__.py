"""Agent rollouts, whitebox and blackbox, that always end their sandbox lease."""

from dressage_paddock.agent import Agent, Scene
from dressage_paddock.artifacts import Artifacts, save_artifacts
from dressage_paddock.blackbox import BlackboxAgent, BlackboxConfig, BlackboxPaddock
from dressage_paddock.errors import (
    BrokenOffError,
    ContextOverflowError,
    GatewayError,
    GatewayRefusedError,
    GraderFailedError,
    HookFailedError,
    InfrastructureError,
    PaddockError,
    RolloutStateError,
    SandboxFailedError,
    StageError,
    StageTimeoutError,
    TaskError,
    ToolError,
    ToolFailedError,
)
from dressage_paddock.events import OnEvent, RolloutEvent
from dressage_paddock.executor import SandboxExecutor
from dressage_paddock.failure import Ending, FailureClass, Stage, classify
from dressage_paddock.gateway import GatewaySession, ModelGateway, ObservableGateway
from dressage_paddock.hooks import (
    AfterView,
    Grade,
    GradePlace,
    Grader,
    GradeView,
    Hooks,
    Inspection,
    Opening,
    Prepared,
    StageResults,
    StageView,
    Verdict,
)
from dressage_paddock.messages import CallRequest, ChatMessage
from dressage_paddock.paddock import Paddock, PaddockConfig
from dressage_paddock.result import FinalizeInfo, RolloutResult
from dressage_paddock.retry import run_with_retries
from dressage_paddock.rollout import Rollout
from dressage_paddock.task import GraderOnly, PublicMetadata, PublicTask, RunnerOnly, Task, TaskLimits
from dressage_paddock.toolcalls import check_tools
from dressage_paddock.toolprotocol import CallOutcome, NativeCallProtocol, TextCallProtocol, ToolProtocol
from dressage_paddock.tools import (
    EditTool,
    ReadTool,
    SearchTool,
    ShellTool,
    Tool,
    ToolBounds,
    WriteTool,
    default_tools,
    tool_schema,
)
from dressage_paddock.whitebox import WhiteboxAgent, WhiteboxConfig, WhiteboxPaddock

__all__ = [
    "AfterView",
    "Agent",
    "Artifacts",
    "BlackboxAgent",
    "BlackboxConfig",
    "BlackboxPaddock",
    "BrokenOffError",
    "CallOutcome",
    "CallRequest",
    "ChatMessage",
    "ContextOverflowError",
    "EditTool",
    "Ending",
    "FailureClass",
    "FinalizeInfo",
    "GatewayError",
    "GatewayRefusedError",
    "GatewaySession",
    "Grade",
    "GradePlace",
    "GradeView",
    "Grader",
    "GraderFailedError",
    "GraderOnly",
    "HookFailedError",
    "Hooks",
    "InfrastructureError",
    "Inspection",
    "ModelGateway",
    "NativeCallProtocol",
    "ObservableGateway",
    "OnEvent",
    "Opening",
    "Paddock",
    "PaddockConfig",
    "PaddockError",
    "Prepared",
    "PublicMetadata",
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
    "SearchTool",
    "ShellTool",
    "Stage",
    "StageError",
    "StageResults",
    "StageTimeoutError",
    "StageView",
    "Task",
    "TaskError",
    "TaskLimits",
    "TextCallProtocol",
    "Tool",
    "ToolBounds",
    "ToolError",
    "ToolFailedError",
    "ToolProtocol",
    "Verdict",
    "WhiteboxAgent",
    "WhiteboxConfig",
    "WhiteboxPaddock",
    "WriteTool",
    "check_tools",
    "classify",
    "default_tools",
    "run_with_retries",
    "save_artifacts",
    "tool_schema",
]
