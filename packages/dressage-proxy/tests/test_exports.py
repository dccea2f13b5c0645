import importlib
import pickle
import pkgutil
import subprocess
import sys

import dressage_proxy
from dressage_proxy import errors


def test_every_exported_name_exists_and_is_listed_once():
    names = dressage_proxy.__all__
    assert len(set(names)) == len(names)
    assert names == sorted(names, key=lambda name: (name.islower(), name))
    for name in names:
        assert getattr(dressage_proxy, name) is not None


def test_every_public_attribute_is_exported():
    public = {
        name
        for name, value in vars(dressage_proxy).items()
        if not name.startswith("_") and getattr(value, "__module__", "").startswith("dressage_proxy.")
    }
    assert public <= set(dressage_proxy.__all__)


def test_every_module_imports_and_none_is_heavy():
    found = pkgutil.walk_packages(dressage_proxy.__path__, "dressage_proxy.")
    modules = [module.name for module in found if not module.name.endswith("__main__")]
    assert "dressage_proxy.dialects.chat" in modules
    for module in modules:
        importlib.import_module(module)
    code = (
        f"import sys, importlib\nfor name in {modules!r}: importlib.import_module(name)\n"
        "heavy = {'torch', 'ray', 'transformers', 'sglang', 'openai', 'pandas'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_errors_keep_what_they_say_over_a_pickle():
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.RequestError):
            made = kind("what")
            made.field, made.fix, made.retry_after_s, made.lost = "f", "do", 3, True
            again = pickle.loads(pickle.dumps(made))
            assert type(again) is kind
            assert (str(again), vars(again)) == ("what", vars(made))
    assert issubclass(errors.ConfigError, ValueError)


def test_the_docstring_of_errors_draws_every_error():
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, errors.ProxyError):
            assert name in errors.__doc__, name
