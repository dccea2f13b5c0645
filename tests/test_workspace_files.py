"""What every file of the tree, and every package's folder, must hold."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import lock
import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from workspace import LOCK, ROOT, TORCH, Member, SetupError, members

each_member = pytest.mark.parametrize("member", members(), ids=lambda m: m.name)

# Written in halves, so that this file passes its own test.
REGISTRY_HOSTS = [
    "py" + "pi.org",
    "python" + "hosted.org",
    "registry." + "npmjs",
    "npm" + "js.org",
    "deb." + "debian",
    "proxy." + "golang",
    "crates" + ".io",
    "download." + "pytorch",
]
MACHINE_PATHS = ["/wo" + "rk/", "/ro" + "ot/", "/opt/" + "wheels", "/opt/" + "pypi", "/fa" + "rm/"]


def _having(paths: list[Path], words: list[str]) -> list[str]:
    found = []
    for path in paths:
        data = path.read_bytes()
        found += [f"{path.relative_to(ROOT)}: {word}" for word in words if word.encode() in data]
    return found


def test_no_file_names_a_registry_host(tracked: list[Path]) -> None:
    assert not _having(tracked, REGISTRY_HOSTS)


def test_no_file_carries_a_path_of_one_machine(tracked: list[Path]) -> None:
    assert not _having(tracked, MACHINE_PATHS)


def test_no_module_of_the_packages_is_huge(tracked: list[Path]) -> None:
    lines = {p: p.read_text(encoding="utf-8").count("\n") for p in tracked if p.suffix == ".py"}
    assert not [f"{path.relative_to(ROOT)}: {n}" for path, n in lines.items() if n > 600]


@each_member
def test_a_package_has_what_a_reader_expects(member: Member) -> None:
    expected = ["README.md", "CHANGELOG.md", "LICENSE", "tests/test_exports.py", "tests/test_readme.py"]
    missing = [name for name in expected if not (member.folder / name).is_file()]
    missing += [name for name in ("__init__.py", "py.typed") if not (member.source / name).is_file()]
    assert not missing


@each_member
def test_a_package_carries_the_licence_of_the_whole(member: Member) -> None:
    assert (member.folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert member.project["license"] == "Apache-2.0"


@each_member
def test_a_readme_says_how_to_install_and_what_it_does_not_do(member: Member) -> None:
    readme = (member.folder / "README.md").read_text(encoding="utf-8")
    assert "```python" in readme
    assert f"pip install {member.name}" in readme
    assert "does not do" in readme


@each_member
def test_a_changelog_names_the_version(member: Member) -> None:
    assert f"## {member.project['version']}" in (member.folder / "CHANGELOG.md").read_text(encoding="utf-8")


@each_member
def test_dependencies_have_floors_and_siblings_have_ranges(member: Member) -> None:
    for requirement in map(Requirement, member.dependencies):
        operators = {specifier.operator for specifier in requirement.specifier}
        assert ">=" in operators, f"{requirement} has no floor"
        if requirement.name.startswith("dressage-"):
            assert "<" in operators, f"{requirement} has no ceiling"


def _locked() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, version in re.findall(
        r"^([a-z0-9.-]+)==([^ ;\\]+)", LOCK.read_text(encoding="utf-8"), re.MULTILINE
    ):
        found.setdefault(name, []).append(version)
    return found


def _requirements() -> list[Requirement]:
    lines = [line for m in members() for line in m.dependencies]
    for path in [ROOT / "pyproject.toml", *(m.folder / "pyproject.toml" for m in members())]:
        groups = tomllib.loads(path.read_text(encoding="utf-8")).get("dependency-groups", {})
        lines += [line for group in groups.values() for line in group]
    return [r for r in map(Requirement, lines) if not r.name.startswith("dressage-")]


def test_the_lock_satisfies_every_declared_dependency() -> None:
    locked = _locked()
    for requirement in _requirements():
        if requirement.name == "torch":
            assert requirement.specifier == SpecifierSet(TORCH.removeprefix("torch"))
            continue
        versions = locked.get(requirement.name, [])
        assert versions, f"{requirement} is not in {LOCK.name}: run `make lock`"
        assert all(requirement.specifier.contains(v) for v in versions), f"{requirement}: {versions} locked"


def test_the_lock_has_hashes_and_no_hosts() -> None:
    text = LOCK.read_text(encoding="utf-8")
    lock.check(text)
    pinned = re.findall(r"^[a-z0-9.-]+==.*$", text, re.MULTILINE)
    assert len(pinned) > 50
    assert all(line.endswith("\\") for line in pinned), "a requirement without a hash"
    assert not re.search(r"^(torch|nvidia|triton)", text, re.MULTILINE)


@pytest.mark.parametrize("line", ["x @ https" + "://host/x.whl", "-e ./packages/x", "--index-url y"])
def test_a_lock_with_a_host_or_a_path_is_refused(line: str) -> None:
    with pytest.raises(SetupError, match="names a host or a path"):
        lock.check(f"a==1 \\\n    --hash=sha256:00\n{line}\n")


def test_the_workflow_runs_each_package(tracked: list[Path]) -> None:
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    for m in members():
        assert f"- {m.name}\n" in workflow
