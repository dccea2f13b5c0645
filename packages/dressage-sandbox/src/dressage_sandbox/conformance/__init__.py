"""What every sandbox provider must do, as checks that can be run against any of them.

::

    for check in conformance.checks_for(provider):
        await check(provider, conformance.DEFAULT_SPEC)

A check raises ``NotConforming`` with a sentence about what is wrong. ``checks_for`` gives those of the
features that the provider names, and one that the others are refused; a provider that runs no programs takes
``FILE_CHECKS`` alone. The image needs /bin/sh and the usual small programs (cat, sleep, head, mkfifo, ln,
kill, truncate), and python3 for exposed ports.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..protocol import Feature, SandboxProvider, SandboxSpec
from . import commands, features, files
from . import local as local_
from ._base import Check, NotConforming

__all__ = [
    "CHECKS",
    "COMMAND_CHECKS",
    "DEFAULT_SPEC",
    "FEATURE_CHECKS",
    "FILE_CHECKS",
    "LOCAL_CHECKS",
    "Check",
    "NotConforming",
    "checks_for",
]

DEFAULT_SPEC = SandboxSpec()

FILE_CHECKS: tuple[Check, ...] = (
    files.written_bytes_are_read_back,
    files.folders_are_listed_by_name,
    files.file_errors_are_typed,
    files.terminate_is_idempotent_and_final,
    files.ids_differ,
    files.files_are_copied_in_and_out,
    files.status_and_expiry_are_told,
    features.what_is_not_offered_is_refused,
)
"""Life cycle and files."""
COMMAND_CHECKS: tuple[Check, ...] = (
    commands.exit_codes_are_the_programs_own,
    commands.arguments_arrive_as_given,
    commands.output_of_any_bytes_comes_back_as_it_was,
    commands.output_is_bounded_and_counted,
    commands.timeouts_end_the_whole_tree,
    commands.commands_run_at_the_same_time,
    commands.odd_files_block_nothing,
    commands.an_expired_sandbox_ends,
)
"""What needs real programs."""
FEATURE_CHECKS: Mapping[Feature, Check] = {
    Feature.STREAMS: features.output_streams_as_it_comes,
    Feature.SERVICES: features.services_have_their_own_life,
    Feature.EXPOSE: features.ports_are_reached_from_outside,
    Feature.SNAPSHOTS: features.snapshots_are_forked,
    Feature.QUIET: features.what_runs_is_ended_and_files_stay,
}
"""What a provider that names the feature must do."""
LOCAL_CHECKS: Mapping[Feature, Check] = {
    Feature.RELAY: local_.the_relay_is_reached_and_nothing_beside_it,
    Feature.EGRESS: local_.what_is_listed_is_reached_and_nothing_else,
    Feature.MOUNTS: local_.mounts_are_read_only,
}
"""The same for features that can be shown only where sandboxes run on the caller's own machine."""
CHECKS = FILE_CHECKS + COMMAND_CHECKS
"""What every provider that runs programs must do."""


def checks_for(provider: SandboxProvider, *, local: bool = False) -> tuple[Check, ...]:
    """``CHECKS``, and those of the provider's features; with ``local`` also ``LOCAL_CHECKS``."""
    known = {**FEATURE_CHECKS, **(LOCAL_CHECKS if local else {})}
    return CHECKS + tuple(check for feature, check in known.items() if feature in provider.features)
