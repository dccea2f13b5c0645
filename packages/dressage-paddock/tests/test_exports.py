"""The public names."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import dressage_paddock


def test_every_name_of_all_is_there_and_nothing_else_is_public():
    names = dressage_paddock.__all__
    assert len(names) == len(set(names))
    modules = {m.name for m in pkgutil.iter_modules(dressage_paddock.__path__)}
    assert {n for n in vars(dressage_paddock) if not n.startswith("_")} - modules == set(names)


def test_import_is_light_and_knows_neither_proxy_nor_segments():
    code = (
        "import sys, dressage_paddock; "
        "bad = {'torch', 'ray', 'transformers', 'numpy', 'dressage_proxy', 'dressage_segments'}; "
        "bad &= set(sys.modules); sys.exit(str(bad) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
