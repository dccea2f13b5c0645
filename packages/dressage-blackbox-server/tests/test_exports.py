"""The public names."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import dressage_blackbox_server


def test_every_name_of_all_is_there_and_nothing_else_is_public():
    names = dressage_blackbox_server.__all__
    assert len(names) == len(set(names))
    modules = {m.name for m in pkgutil.iter_modules(dressage_blackbox_server.__path__)}
    assert {n for n in vars(dressage_blackbox_server) if not n.startswith("_")} - modules == set(names)
    for name in names:
        assert hasattr(dressage_blackbox_server, name), name


def test_import_is_light():
    code = (
        "import sys, dressage_blackbox_server; "
        "heavy = {'torch', 'ray', 'transformers', 'starlette', 'uvicorn'}; "
        "bad = heavy & set(sys.modules); sys.exit(str(bad) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
