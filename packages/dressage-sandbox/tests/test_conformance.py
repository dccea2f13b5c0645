from __future__ import annotations

import pytest
from dressage_sandbox import (
    BubblewrapProvider,
    Feature,
    PooledProvider,
    Sandbox,
    SandboxProvider,
    SandboxSpec,
    Service,
    conformance,
)
from dressage_sandbox.conformance import commands
from dressage_sandbox.fake import FakeProvider, completed

pytestmark = pytest.mark.heavy


@pytest.mark.parametrize(
    "check", conformance.checks_for(BubblewrapProvider(), local=True), ids=lambda check: check.__name__
)
async def test_bubblewrap_conforms(provider: BubblewrapProvider, check: conformance.Check) -> None:
    await check(provider, conformance.DEFAULT_SPEC)


@pytest.mark.parametrize(
    "check",
    [*conformance.FILE_CHECKS, conformance.FEATURE_CHECKS[Feature.SNAPSHOTS]],
    ids=lambda check: check.__name__,
)
async def test_the_fake_conforms_in_files_and_life_cycle(check: conformance.Check) -> None:
    await check(FakeProvider(), conformance.DEFAULT_SPEC)


async def test_bubblewrap_and_its_pool_satisfy_the_protocols(provider: BubblewrapProvider) -> None:
    box = await provider.create(SandboxSpec())
    assert isinstance(box, Sandbox)
    assert isinstance(await box.start(["true"]), Service)
    assert isinstance(provider, SandboxProvider)
    assert isinstance(PooledProvider(provider, SandboxSpec(), 1), SandboxProvider)


async def test_a_provider_that_loses_exit_codes_does_not_conform() -> None:
    with pytest.raises(conformance.NotConforming, match="exit 7"):
        await commands.exit_codes_are_the_programs_own(
            FakeProvider(lambda sandbox, call: completed()), conformance.DEFAULT_SPEC
        )
