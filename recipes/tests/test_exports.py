import subprocess
import sys

import dressage_recipes


def test_every_exported_name_exists_and_is_listed_once():
    names = dressage_recipes.__all__
    assert len(set(names)) == len(names)
    for name in names:
        assert getattr(dressage_recipes, name) is not None


def test_every_public_attribute_is_exported():
    public = {
        name
        for name, value in vars(dressage_recipes).items()
        if not name.startswith("_") and getattr(value, "__module__", "").startswith("dressage_recipes.")
    }
    assert public <= set(dressage_recipes.__all__)


def test_each_name_is_declared_with_the_module_that_it_comes_from():
    declared = [name for names in dressage_recipes._MODULES.values() for name in names]
    assert sorted(declared) == dir(dressage_recipes) == sorted(dressage_recipes.__all__)


def test_the_command_can_be_stopped_before_anything_of_it_is_loaded():
    code = (
        "import sys; from dressage_recipes.cli import main\n"
        "early = {'numpy', 'pydantic', 'httpx', 'dressage_segments'} & set(sys.modules)\n"
        "assert not early, early"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_importing_loads_nothing_heavy():
    code = (
        "import sys, dressage_recipes\n"
        "heavy = {'torch', 'transformers', 'matplotlib', 'fastapi', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
