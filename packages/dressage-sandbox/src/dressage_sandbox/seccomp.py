"""The seccomp policy: the system calls that have no use in a sandbox but a record of escapes.

Everything else is allowed; the namespaces hold the rest. A refused call fails with EPERM, so that programs
that merely try (io_uring, perf) take their other way. Some need a look at an argument: ``clone`` may make
no namespace (``clone3`` hides its flags in memory, so it answers ENOSYS and libc falls back to ``clone``),
``socket`` may open only unix, IP and netlink sockets (AF_VSOCK would reach a hypervisor from any network
namespace), ``ioctl`` may neither push input into a terminal nor change its line discipline (which loads old
drivers into the kernel), ``fcntl`` may take no lease on a file (another's opening of it, ours too, would fail
or wait). ``mmap``, ``memfd_create`` and ``shmget`` give no huge pages of the machine's reserve, which no
limit of memory counts: ENOMEM, as where there is none. The limits, priority and processors of process 1,
which is of the same user and answers for all, may not be changed: without memory or files it would end, and
a program could pass its own failure off as the machine's.
"""

from __future__ import annotations

import errno
import platform
import struct

__all__ = ["DENIED", "program"]

# name: (x86_64, aarch64); None where the architecture lacks it
DENIED: dict[str, tuple[int | None, int | None]] = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "process_madvise": (440, 440), "pidfd_getfd": (438, 438), "kcmp": (312, 272),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431),
    "open_tree_attr": (467, 467), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "unshare": (272, 97), "setns": (308, 268),
    "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218),
    "bpf": (321, 280), "userfaultfd": (323, 282), "perf_event_open": (298, 241),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89), "syslog": (103, 116),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "adjtimex": (159, 171),
    "clock_adjtime": (305, 266), "sethostname": (170, 161), "setdomainname": (171, 162),
    "quotactl": (179, 60), "quotactl_fd": (443, 443), "fanotify_init": (300, 262),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "lookup_dcookie": (212, 18),
    "memfd_secret": (447, 447), "vhangup": (153, 58),
    "iopl": (172, None), "ioperm": (173, None), "modify_ldt": (154, None), "uselib": (134, None),
}  # fmt: skip

_ARCH = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_CLONE, _CLONE3, _SOCKET, _IOCTL = (56, 220), (435, 435), (41, 198), (16, 29)
_NEW_NAMESPACES = 0x7E020080  # NEWTIME NEWNS NEWCGROUP NEWUTS NEWIPC NEWUSER NEWPID NEWNET
_FAMILIES = (1, 2, 10, 16)  # AF_UNIX AF_INET AF_INET6 AF_NETLINK
_TERMINAL = (0x5412, 0x541C, 0x5423)  # TIOCSTI TIOCLINUX TIOCSETD
_FCNTL, _LEASES = (72, 25), (1024, 1040)  # F_SETLEASE F_SETDELEG
_HUGE = (((9, 222), 3, 0x40000), ((319, 279), 1, 0x4), ((29, 194), 2, 0o4000))
"""MAP_HUGETLB of mmap, MFD_HUGETLB of memfd_create, SHM_HUGETLB of shmget (which root's group may use)."""
_PRLIMIT = (302, 261)
_SCHEDULE = ((142, 118), (144, 119), (314, 274), (203, 122))  # sched_set{param,scheduler,attr,affinity}
_PRIORITY = (((141, 140), 2), ((251, 30), 3))  # setpriority, ioprio_set; what names all of a user
_X32_BIT = 0x40000000

_LOAD, _JEQ, _JGE, _JSET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _ARCH_AT, _ARG0_AT, _ARG1_AT, _ARG2_AT = 0, 4, 16, 24, 32
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000

Instruction = tuple[int, int, int, int]


def program(machine: str | None = None) -> bytes | None:
    """The filter as an array of ``struct sock_filter``, or None on an architecture without a table."""
    known = _ARCH.get(machine or platform.machine())
    if known is None:
        return None
    column, audit_arch = known
    code: list[Instruction] = [
        (_LOAD, 0, 0, _ARCH_AT),
        (_JEQ, 1, 0, audit_arch),
        _refuse(errno.EPERM),  # a foreign instruction set has other numbers
        (_LOAD, 0, 0, _NUMBER_AT),
    ]
    if column == 0:
        code += [(_JGE, 0, 1, _X32_BIT), _refuse(errno.EPERM)]
    for numbers in DENIED.values():
        number = numbers[column]
        if number is not None:
            code += [(_JEQ, 0, 1, number), _refuse(errno.EPERM)]
    code += [(_JEQ, 0, 1, _CLONE3[column]), _refuse(errno.ENOSYS)]
    code += _on_argument(_CLONE[column], _ARG0_AT, [(_JSET, 0, 1, _NEW_NAMESPACES), _refuse(errno.EPERM)])
    allowed: list[Instruction] = [(_JEQ, len(_FAMILIES) - at, 0, f) for at, f in enumerate(_FAMILIES)]
    code += _on_argument(_SOCKET[column], _ARG0_AT, [*allowed, _refuse(errno.EAFNOSUPPORT)])
    for numbers, requests in ((_IOCTL, _TERMINAL), (_FCNTL, _LEASES)):
        refused = [i for request in requests for i in ((_JEQ, 0, 1, request), _refuse(errno.EPERM))]
        code += _on_argument(numbers[column], _ARG1_AT, refused)
    for numbers, argument, flag in _HUGE:
        huge = [(_JSET, 0, 1, flag), _refuse(errno.ENOMEM)]
        code += _on_argument(numbers[column], _ARG0_AT + 8 * argument, huge)
    code += _first_process(column)
    code.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in code)


def _first_process(column: int) -> list[Instruction]:
    """What would change process 1, by its number or with all processes of its user."""
    one = [(_JEQ, 0, 1, 1), _refuse(errno.EPERM)]
    change = [  # the new limits' address, both halves: where it is 0 the limits are only read
        (_JEQ, 1, 0, 1), (_RETURN, 0, 0, _ALLOW),
        (_LOAD, 0, 0, _ARG2_AT), (_JEQ, 1, 0, 0), _refuse(errno.EPERM),
        (_LOAD, 0, 0, _ARG2_AT + 4), (_JEQ, 1, 0, 0), _refuse(errno.EPERM),
    ]  # fmt: skip
    code = _on_argument(_PRLIMIT[column], _ARG0_AT, change)
    for numbers in _SCHEDULE:
        code += _on_argument(numbers[column], _ARG0_AT, one)
    for numbers, user in _PRIORITY:
        whose: list[Instruction] = [(_JEQ, 0, 1, user), _refuse(errno.EPERM), (_LOAD, 0, 0, _ARG1_AT)]
        code += _on_argument(numbers[column], _ARG0_AT, [*whose, *one])
    return code


def _refuse(code: int) -> Instruction:
    return (_RETURN, 0, 0, _ERRNO | code)


def _on_argument(number: int, argument: int, body: list[Instruction]) -> list[Instruction]:
    """For call ``number``: load the low half of an argument, run ``body``, else allow."""
    inner: list[Instruction] = [(_LOAD, 0, 0, argument), *body, (_RETURN, 0, 0, _ALLOW)]
    return [(_JEQ, 0, len(inner), number), *inner]
