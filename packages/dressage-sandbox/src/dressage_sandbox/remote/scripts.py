"""The shell scripts that run inside: plain POSIX, with every value quoted on this side."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from shlex import quote

from ..protocol import Limits

__all__ = ["RunScript", "ends", "kills", "lists", "puts", "reads", "stops", "waits"]

MARK = "DRESSAGE_MARK"
"""The variable that every process of a command carries, unless it clears its environment."""
TAG_TOP = 1 << 60
"""Where util-linux's prlimit is inside, a command's processes also carry a lowered hard RLIMIT_RTTIME (inert:
nothing inside may use real-time scheduling), which no process can take off without privilege."""

_TAG = "pre=; if command -v prlimit >/dev/null && prlimit --rttime={tag}:{tag} true 2>/dev/null; then "
_TAG += 'pre="prlimit --rttime={tag}:{tag}"; fi\n'

_RUN = """\
umask 077
d={folder}
mkdir "$d" || exit 91
cd {cwd} 2>/dev/null || {{ rm -rf "$d"; echo 'CWD'; exit 0; }}
mkfifo "$d/o" "$d/o1" "$d/o2" "$d/e" "$d/e1" "$d/e2" || exit 92
{tag}\
gather() {{
  {{ head -c {limit} >"$d/$1.h"; cat >/dev/null; }} <"$d/${{1}}1" &
  wc -c <"$d/${{1}}2" >"$d/$1.n" &
  tee "$d/${{1}}1" "$d/${{1}}2" <"$d/$1" | tail -c {limit} >"$d/$1.t" &
}}
gather o; gather e
(
  umask 022
  {limits}
  exec $pre env -i {mark}={id} PATH="${{DRESSAGE_PATH:-$PATH}}" {variables} {argv}
) <{stdin} >"$d/o" 2>"$d/e" &
wait $!
code=$?
wait
report() {{
  echo "DRESSAGE $code $(($(cat "$d/o.n"))) $(($(cat "$d/e.n")))"
  for part in o.h o.t e.h e.t; do base64 <"$d/$part"; echo :; done
}}
"""
_AND_TELL = 'report\nrm -rf "$d" "$d.in"\n'
_AND_KEEP = 'report >"$d/part" && mv "$d/part" "$d/done"\n'
_ERRNO = """\
fail() {
  case $1 in
    *'No space left'*) echo 'E 28' ;; *'Permission denied'*|*'not permitted'*) echo 'E 13' ;;
    *'Read-only'*) echo 'E 30' ;; *'Not a directory'*|*'File exists'*) echo 'E 20' ;; *) echo 'E 5' ;;
  esac
  exit 0
}
"""


def word(text: str | bytes) -> str:
    """One word of a script; bytes that are no UTF-8 are kept by surrogate escapes."""
    return quote(os.fsdecode(text))


@dataclass(frozen=True, slots=True)
class RunScript:
    """A command as a script. ``number`` is unique in the sandbox; ``limit`` is bytes kept per stream."""

    id: str
    number: int
    argv: Sequence[bytes]
    env: Mapping[str, str]
    cwd: str
    stdin: str | None
    limit: int
    limits: Limits

    @property
    def folder(self) -> str:
        """Where it keeps what the command wrote."""
        return f"/tmp/.dressage-{self.id}"

    @property
    def tag(self) -> int:
        """Its mark as a resource limit."""
        return TAG_TOP - self.number

    def text(self, *, detached: bool) -> str:
        """Run it and print the report; detached: at once, and keep the report for ``waits``."""
        # PATH and whatever else the caller names again comes later in env's list, and so wins.
        variables = " ".join(word(f"{key}={value}") for key, value in self.env.items())
        open_files, cores = self.limits.open_files, 0
        body = _RUN.format(
            folder=self.folder,
            cwd=word(self.cwd),
            tag=_TAG.format(tag=self.tag),
            limit=self.limit,
            limits=f"ulimit -n {open_files} 2>/dev/null; ulimit -c {cores} 2>/dev/null",
            mark=MARK,
            id=self.id,
            variables=variables,
            argv=" ".join(word(argument) for argument in self.argv),
            stdin=word(self.stdin or "/dev/null"),
        )
        if not detached:
            return body + _AND_TELL
        inner = word(body + _AND_KEEP)
        check = f"cd {word(self.cwd)} 2>/dev/null || {{ echo 'CWD'; exit 0; }}\n"
        return f"{check}setsid sh -c {inner} </dev/null >/dev/null 2>&1 &\necho started\n"


def _found(script_id: str, tag: int) -> str:
    return (
        f"found() {{ {{ grep -lsF {MARK}={script_id} /proc/[0-9]*/environ;"
        f" grep -ls 'realtime timeout  *{tag} ' /proc/[0-9]*/limits; }} 2>/dev/null |"
        " sed 's|^/proc/||; s|/.*||' | sort -u; }\n"
    )


def kills(script_id: str, tag: int) -> str:
    """Kill every process of a command; prints ``gone`` when none is left."""
    return _found(script_id, tag) + (
        "for round in 1 2 3 4 5 6 7 8 9 10 11 12; do\n"
        "  pids=$(found)\n"
        '  [ -n "$pids" ] || { echo gone; exit 0; }\n'
        # Stopping first keeps a fork bomb from growing between two looks.
        "  kill -STOP $pids 2>/dev/null; kill -KILL $pids 2>/dev/null\n"
        "  sleep 0.02\n"
        "done\n"
    )


def stops(script_id: str, tag: int, folder: str, grace_s: float) -> str:
    """SIGTERM for every process of a service, and SIGKILL after ``grace_s`` for what is left."""
    steps = max(1, round(grace_s / 0.05))
    return (
        _found(script_id, tag)
        + 'pids=$(found); [ -z "$pids" ] || kill -TERM $pids 2>/dev/null\n'
        + f"i=0; while [ $i -lt {steps} ] && [ ! -e {folder}/done ]; do i=$((i+1)); sleep 0.05; done\n"
        + kills(script_id, tag)
    )


def waits(folder: str) -> str:
    """The report of a detached command, once it is there."""
    # The folder may not be there yet: the command has only just been detached.
    absent = f"[ -d {folder} ] || {{ i=$((i+1)); [ $i -lt 100 ] || exit 0; }}"
    return f"i=0; while [ ! -e {folder}/done ]; do {absent}; sleep 0.1; done; cat {folder}/done\n"


def ends(folder: str) -> str:
    """Remove what a detached command left."""
    return f"rm -rf {folder} {folder}.in\n"


def reads(path: str, offset: int, size: int) -> str:
    """``D`` and base64 of a part of a regular file, or ``E`` and an errno."""
    return (
        f"p={word(path)}\n"
        "if [ -d \"$p\" ]; then echo 'E 21'; elif [ ! -e \"$p\" ]; then echo 'E 2'\n"
        "elif [ ! -f \"$p\" ]; then echo 'E 22'; elif [ ! -r \"$p\" ]; then echo 'E 13'\n"
        f'else echo "D $(wc -c <"$p")"; tail -c +{offset + 1} "$p" | head -c {size} | base64; fi\n'
    )


def puts(path: str, mode: int, part: str) -> str:
    """Put ``part`` (a file beside nothing that matters) in the place of ``path``, whole; ``D`` or ``E``.

    A link, FIFO or device of that name is replaced, never followed; it is done as the agent's user.
    """
    folder = path.rpartition("/")[0] or "/"
    return _ERRNO + (
        f"umask 022; p={word(path)}; f={word(folder)}; t={word(part)}\n"
        "trap 'rm -f \"$t\"' EXIT\n"
        "case $p in */) echo 'E 21'; exit 0 ;; esac\n"
        'if [ -d "$p" ] && [ ! -L "$p" ]; then echo \'E 21\'; exit 0; fi\n'
        'm=$(LC_ALL=C mkdir -p -- "$f" 2>&1) || fail "$m"\n'
        'q="$f/.dressage-${t##*-}"\n'
        f'm=$({{ LC_ALL=C cat "$t" >"$q" && chmod {mode & 0o7777:o} "$q" && mv -fT -- "$q" "$p"; }} 2>&1)'
        ' || { rm -f "$q"; fail "$m"; }\n'
        "echo D\n"
    )


def lists(path: str) -> str:
    """``D`` and base64 of NUL-separated kind, size and name of each entry, or ``E`` and an errno."""
    return (
        f"p={word(path)}\n"
        "if [ ! -e \"$p\" ]; then echo 'E 2'; elif [ ! -d \"$p\" ]; then echo 'E 20'\n"
        "elif [ ! -r \"$p\" ]; then echo 'E 13'; else echo D\n"
        "{ if find / -maxdepth 0 -printf '' 2>/dev/null; then\n"
        "    find \"$p/\" -mindepth 1 -maxdepth 1 -printf '%y\\0%s\\0%f\\0'\n"
        '  else for f in "$p"/* "$p"/.[!.]* "$p"/..?*; do\n'
        '    if [ -L "$f" ]; then printf \'l\\0000\\000%s\\000\' "${f##*/}"\n'
        '    elif [ -d "$f" ]; then printf \'d\\0000\\000%s\\000\' "${f##*/}"\n'
        '    elif [ -f "$f" ]; then printf \'f\\000%s\\000%s\\000\' "$(stat -c %s "$f")" "${f##*/}"\n'
        '    elif [ -e "$f" ]; then printf \'p\\0000\\000%s\\000\' "${f##*/}"; fi; done; fi; } | base64; fi\n'
    )
