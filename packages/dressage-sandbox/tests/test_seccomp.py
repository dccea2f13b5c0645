from __future__ import annotations

import errno
import struct

import pytest
from dressage_sandbox import seccomp
from hypothesis import given
from hypothesis import strategies as st

ALLOW = 0x7FFF0000
ARCHES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
NUMBERS = {"x86_64": {"clone": 56, "clone3": 435, "socket": 41, "ioctl": 16, "fcntl": 72}, "aarch64": {"clone": 220, "clone3": 435, "socket": 198, "ioctl": 29, "fcntl": 25}}  # fmt: skip  # noqa: E501


def decide(machine: str, number: int, *args: int, arch: int | None = None) -> int:
    """Run the filter as the kernel would."""
    data = struct.pack("<IIQ6Q", number, arch or ARCHES[machine], 0, *(list(args) + [0] * 6)[:6])
    code = seccomp.program(machine)
    assert code is not None
    instructions = list(struct.iter_unpack("<HBBI", code))
    accumulator, at = 0, 0
    while True:
        op, if_true, if_false, k = instructions[at]
        at += 1
        if op == 0x20:
            accumulator = struct.unpack_from("<I", data, k)[0]
        elif op == 0x06:
            return k
        else:
            holds = {0x15: accumulator == k, 0x35: accumulator >= k, 0x45: bool(accumulator & k)}[op]
            at += if_true if holds else if_false


def refused(code: int) -> int:
    return 0x00050000 | code


@pytest.mark.parametrize("machine", ARCHES)
def test_every_denied_call_is_refused_and_all_others_allowed(machine: str) -> None:
    denied = {n[list(ARCHES).index(machine)] for n in seccomp.DENIED.values()} - {None}
    for number in range(500):
        expected = ALLOW
        if number in denied:
            expected = refused(errno.EPERM)
        elif number == NUMBERS[machine]["clone3"]:
            expected = refused(errno.ENOSYS)
        elif number == NUMBERS[machine]["socket"]:
            expected = refused(errno.EAFNOSUPPORT)  # family 0
        assert decide(machine, number) == expected, number


@pytest.mark.parametrize("machine", ARCHES)
@given(flags=st.integers(0, 2**32 - 1))
def test_clone_is_refused_exactly_when_it_makes_a_namespace(machine: str, flags: int) -> None:
    namespaces = (
        0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000 | 0x80
    )
    expected = refused(errno.EPERM) if flags & namespaces else ALLOW
    assert decide(machine, NUMBERS[machine]["clone"], flags) == expected


@pytest.mark.parametrize("machine", ARCHES)
def test_sockets_are_of_the_plain_families(machine: str) -> None:
    allowed = {f for f in range(64) if decide(machine, NUMBERS[machine]["socket"], f) == ALLOW}
    assert allowed == {1, 2, 10, 16}


@pytest.mark.parametrize("machine", ARCHES)
def test_terminal_input_is_refused_and_other_requests_allowed(machine: str) -> None:
    for request, allowed in (
        (0x5412, False),
        (0x541C, False),
        (0x5423, False),
        (0x5413, True),
        (0x5401, True),
    ):
        assert (decide(machine, NUMBERS[machine]["ioctl"], 0, request) == ALLOW) is allowed


@pytest.mark.parametrize("machine", ARCHES)
def test_leases_of_files_are_refused_and_other_requests_allowed(machine: str) -> None:
    for request, allowed in ((1024, False), (1040, False), (1025, True), (2, True), (1033, True)):
        assert (decide(machine, NUMBERS[machine]["fcntl"], 3, request) == ALLOW) is allowed


@pytest.mark.parametrize(
    ("machine", "mmap", "memfd_create", "shmget"), [("x86_64", 9, 319, 29), ("aarch64", 222, 279, 194)]
)
def test_huge_pages_of_the_machines_reserve_are_not_given(
    machine: str, mmap: int, memfd_create: int, shmget: int
) -> None:
    private, huge = 0x22, 0x40022
    assert decide(machine, mmap, 0, 1 << 21, 3, private) == ALLOW
    assert decide(machine, mmap, 0, 1 << 21, 3, huge) == refused(errno.ENOMEM)
    assert decide(machine, mmap, 0, 0x40000, 0x40000, private, 0x40000, 0x40000) == ALLOW
    assert decide(machine, memfd_create, 0x4, 1) == ALLOW
    assert decide(machine, memfd_create, 0, 5) == refused(errno.ENOMEM)
    assert decide(machine, shmget, 0o4000, 0o4000, 0o1600) == ALLOW
    assert decide(machine, shmget, 0, 1 << 21, 0o5600) == refused(errno.ENOMEM)


PROCESS_1 = {
    "x86_64": {"prlimit": 302, "schedule": (142, 144, 203, 314), "setpriority": 141, "ioprio_set": 251},
    "aarch64": {"prlimit": 261, "schedule": (118, 119, 122, 274), "setpriority": 140, "ioprio_set": 30},
}


@pytest.mark.parametrize("machine", ARCHES)
@given(pid=st.integers(0, 4), new=st.sampled_from([0, 1, 1 << 32, 0x7FFF_0000_1000]))
def test_limits_of_process_1_are_read_and_not_changed(machine: str, pid: int, new: int) -> None:
    refusal = pid == 1 and new != 0
    expected = refused(errno.EPERM) if refusal else ALLOW
    assert decide(machine, PROCESS_1[machine]["prlimit"], pid, 7, new, 0) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("machine", ARCHES)
@given(which=st.integers(0, 3), who=st.integers(0, 3))
def test_priority_and_processors_of_process_1_are_not_changed(machine: str, which: int, who: int) -> None:
    numbers = PROCESS_1[machine]
    for number in numbers["schedule"]:  # type: ignore[union-attr]
        assert decide(machine, number, who) == (refused(errno.EPERM) if who == 1 else ALLOW)
    for name, user in (("setpriority", 2), ("ioprio_set", 3)):
        refusal = who == 1 or which == user
        expected = refused(errno.EPERM) if refusal else ALLOW
        assert decide(machine, numbers[name], which, who) == expected  # type: ignore[arg-type]


def test_other_instruction_sets_are_refused() -> None:
    assert decide("x86_64", 1, arch=0x40000003) == refused(errno.EPERM)
    assert decide("x86_64", 0x40000000 | 1) == refused(errno.EPERM)


def test_an_unknown_architecture_has_no_filter() -> None:
    assert seccomp.program("sparc") is None
