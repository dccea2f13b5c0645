#!/bin/sh
# Prints a Python of at least 3.11: $PYTHON (a path, a name, or a version such as 3.12), else the first that fits.
set -u
ok() {
    command -v "$1" >/dev/null 2>&1 || return 1
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || return 1
    # What a version manager puts on the PATH is a wrapper: print the interpreter itself.
    "$1" -c 'import sys; print(sys.executable)'
}
if [ -n "${PYTHON:-}" ]; then
    case "$PYTHON" in
        [0-9]*) wanted="python$PYTHON" ;;
        *) wanted="$PYTHON" ;;
    esac
    ok "$wanted" && exit 0
    # pyenv's wrapper refuses a version that is installed but not chosen here.
    for found in "${PYENV_ROOT:-${HOME:-}/.pyenv}"/versions/"$PYTHON".*/bin/python; do
        ok "$found" && exit 0
    done
    if command -v uv >/dev/null 2>&1 && uv python find "$PYTHON" 2>/dev/null; then exit 0; fi
    echo "PYTHON=$PYTHON: no such interpreter of version 3.11 or newer" >&2
    exit 2
fi
for name in python3 python3.11 python3.12 python3.13 python3.14 python; do
    ok "$name" && exit 0
done
if command -v uv >/dev/null 2>&1 && uv python find '>=3.11' 2>/dev/null; then exit 0; fi
echo "No Python of version 3.11 or newer was found. Install one (on Debian or Ubuntu: apt-get install python3 python3-venv), or name it: make PYTHON=/path/to/python3" >&2
exit 2
