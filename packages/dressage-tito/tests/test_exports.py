from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import dressage_tito
from dressage_tito import FolderError, MessageError, ProfileError, TitoError


def test_the_public_names_are_exactly_these() -> None:
    assert sorted(dressage_tito.__all__) == dressage_tito.__all__
    assert set(dressage_tito.__all__) == {
        "Certificate",
        "ChatCodec",
        "Encoded",
        "FolderError",
        "Message",
        "MessageError",
        "NotCertifiedError",
        "ParsedTurn",
        "Profile",
        "ProfileError",
        "Refusal",
        "ThinkingPolicy",
        "TitoError",
        "TokenBuffer",
        "Tool",
        "ToolCall",
        "coerce_arguments",
        "concat_encoded",
        "message_from_json",
        "message_to_json",
        "reply_text",
        "require_certified",
        "wire_arguments",
    }
    assert all(hasattr(dressage_tito, name) for name in dressage_tito.__all__)


def test_errors_have_one_root_keep_stdlib_parents_and_pickle() -> None:
    errors = [FolderError("p", "missing", "Fix it."), ProfileError("odd"), MessageError("messages[0]", "fix")]
    for error in errors:
        assert isinstance(error, TitoError)
        assert isinstance(error, ValueError)
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error)
        assert str(again) == str(error)


def test_importing_the_package_loads_no_heavy_module() -> None:
    code = (
        "import sys, dressage_tito; "
        "print(sorted({'numpy', 'tokenizers', 'jinja2', 'torch', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_importing_the_package_takes_less_than_three_tenths_of_a_second() -> None:
    code = "import time; t = time.process_time(); import dressage_tito; print(time.process_time() - t)"
    runs = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
        for _ in range(3)
    ]
    assert min(runs) < 0.3


def test_every_file_stays_readable() -> None:
    for file in Path(dressage_tito.__file__).parent.glob("*.py"):
        assert len(file.read_text(encoding="utf-8").splitlines()) <= 320, file.name
