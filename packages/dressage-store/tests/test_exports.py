import subprocess
import sys

import dressage_store


def test_every_exported_name_exists_and_is_listed_once():
    names = dressage_store.__all__
    assert len(set(names)) == len(names)
    for name in names:
        assert getattr(dressage_store, name) is not None


def test_every_public_attribute_is_exported():
    public = {
        name
        for name, value in vars(dressage_store).items()
        if not name.startswith("_") and getattr(value, "__module__", "").startswith("dressage_store.")
    }
    assert public <= set(dressage_store.__all__)


def test_importing_needs_segments_and_numpy_alone():
    code = (
        "import sys, dressage_store\n"
        "heavy = {'torch', 'safetensors', 'ray', 'transformers', 'fastapi', 'httpx', 'pydantic'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
