"""Providers are found by name, this package's own and others'."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from dressage_sandbox import BubblewrapProvider, InvalidSpec, ProviderUnavailable, SandboxProvider
from dressage_sandbox.container import ContainerProvider
from dressage_sandbox.e2b import E2BProvider
from dressage_sandbox.providers import GROUP, find_provider, provider_names
from dressage_sandbox.ray import RayProvider

OWN = {
    "bubblewrap": BubblewrapProvider,
    "container": ContainerProvider,
    "e2b": E2BProvider,
    "ray": RayProvider,
}


@pytest.mark.parametrize("name", list(OWN))
def test_each_own_provider_is_found_by_its_name_and_made_without_arguments(name):
    assert name in provider_names()
    assert find_provider(name) is OWN[name]
    assert isinstance(find_provider(name)(), SandboxProvider)


@pytest.fixture
def offer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Offers providers as an installed package would."""

    def make(package: str, **points: str) -> None:
        info = tmp_path / f"{package}-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n")
        lines = "".join(f"{name} = {value}\n" for name, value in points.items())
        (info / "entry_points.txt").write_text(f"[{GROUP}]\n{lines}")

    monkeypatch.syspath_prepend(str(tmp_path))
    return make


def test_a_provider_of_another_package_is_found_beside_them(offer):
    offer("other", mine="dressage_sandbox.fake:FakeProvider")
    assert isinstance(find_provider("mine")(), SandboxProvider)
    assert set(OWN) < set(provider_names())


def test_what_cannot_be_chosen_is_refused_by_name(offer):
    offer("broken", lost="no_such_module_at_all:X", bare="dressage_sandbox.fake:Missing", text="os:sep")
    offer("one", twice="dressage_sandbox.fake:FakeProvider")
    offer("two", twice="dressage_sandbox.provider:BubblewrapProvider")
    with pytest.raises(InvalidSpec, match="known: bare, bubblewrap, container"):
        find_provider("docker")
    with pytest.raises(InvalidSpec, match="more than once"):
        find_provider("twice")
    for name in ("lost", "bare", "text"):
        with pytest.raises(ProviderUnavailable, match=name):
            find_provider(name)


def test_names_and_providers_load_nothing_heavy():
    code = (
        "import sys\n"
        "from dressage_sandbox.providers import find_provider, provider_names\n"
        "for name in ('bubblewrap', 'container', 'e2b', 'ray'): find_provider(name)()\n"
        "bad = {'e2b', 'ray', 'httpx', 'uvicorn', 'grpc'} & set(sys.modules)\n"
        "sys.exit(str(bad) if bad else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
