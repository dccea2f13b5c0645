"""Token evidence, trajectory trees, segments and training samples for agent RL."""

from dressage_segments.advantages import Estimator, grpo, reinforce_pp, reinforce_pp_baseline, rloo
from dressage_segments.audit import AuditReport, audit
from dressage_segments.columns import Column
from dressage_segments.denominators import DeadGroups, Weighting, Weights, mask_sums, token_weights
from dressage_segments.digest import IdsDigest, ids_digest
from dressage_segments.errors import (
    BufferFormatError,
    ContextMismatchError,
    GroupError,
    InvalidFieldError,
    MissingGroupError,
    MissingRewardError,
    ProvenanceError,
    RewardConflictError,
    SegmentsError,
    TreeError,
    UnknownTurnError,
)
from dressage_segments.export import Export, export, finalize, turn_losses
from dressage_segments.findings import Finding, Promise
from dressage_segments.frames import iter_frames, write_frames
from dressage_segments.policy import LossPolicy, loss_policy
from dressage_segments.protocols import LogRecord, SegmentSink, SegmentSource
from dressage_segments.record_io import record_from_bytes, record_to_bytes
from dressage_segments.records import (
    Final,
    final_from_record,
    final_to_record,
    info_from_record,
    mark_from_record,
    mark_to_record,
    open_to_record,
    turn_from_record,
    turn_to_record,
)
from dressage_segments.replay import tree_from_records
from dressage_segments.rollouts import Rollout, rollout_of
from dressage_segments.safetensors_io import pack, unpack
from dressage_segments.samples import Batch, Sample, expand
from dressage_segments.segment_io import segment_from_bytes, segment_to_bytes
from dressage_segments.trajectory import COLUMNS, SCHEMA, Segment, Trajectory
from dressage_segments.trajectory_io import trajectory_from_bytes, trajectory_to_bytes
from dressage_segments.tree import Match, TrajectoryTree
from dressage_segments.turn import ROOT, UNKNOWN_VERSION, EngineCall, SessionInfo, Turn
from dressage_segments.versions import VersionRule, oldest_version, stale_rollouts
from dressage_segments.vocabulary import BranchKind, FailureClass, LossCause, Mark, Origin

__all__ = [
    "COLUMNS",
    "ROOT",
    "SCHEMA",
    "UNKNOWN_VERSION",
    "AuditReport",
    "Batch",
    "BranchKind",
    "BufferFormatError",
    "Column",
    "ContextMismatchError",
    "DeadGroups",
    "EngineCall",
    "Estimator",
    "Export",
    "FailureClass",
    "Final",
    "Finding",
    "GroupError",
    "IdsDigest",
    "InvalidFieldError",
    "LogRecord",
    "LossCause",
    "LossPolicy",
    "Mark",
    "Match",
    "MissingGroupError",
    "MissingRewardError",
    "Origin",
    "Promise",
    "ProvenanceError",
    "RewardConflictError",
    "Rollout",
    "Sample",
    "Segment",
    "SegmentSink",
    "SegmentSource",
    "SegmentsError",
    "SessionInfo",
    "Trajectory",
    "TrajectoryTree",
    "TreeError",
    "Turn",
    "UnknownTurnError",
    "VersionRule",
    "Weighting",
    "Weights",
    "audit",
    "expand",
    "export",
    "final_from_record",
    "final_to_record",
    "finalize",
    "grpo",
    "ids_digest",
    "info_from_record",
    "iter_frames",
    "loss_policy",
    "mark_from_record",
    "mark_to_record",
    "mask_sums",
    "oldest_version",
    "open_to_record",
    "pack",
    "record_from_bytes",
    "record_to_bytes",
    "reinforce_pp",
    "reinforce_pp_baseline",
    "rloo",
    "rollout_of",
    "segment_from_bytes",
    "segment_to_bytes",
    "stale_rollouts",
    "token_weights",
    "trajectory_from_bytes",
    "trajectory_to_bytes",
    "tree_from_records",
    "turn_from_record",
    "turn_losses",
    "turn_to_record",
    "unpack",
    "write_frames",
]
