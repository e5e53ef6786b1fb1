"""Real packets need root, nft and iproute2.  In CI their absence is a failure, elsewhere a reason to skip."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path

import pytest


def _load_netns() -> None:
    """Makes ``netns`` importable for the tests beside it (importlib mode puts no folder on the path)."""
    path = Path(__file__).parent / "netns.py"
    spec = importlib.util.spec_from_file_location("netns", path)
    assert spec is not None, f"no module at {path}"
    assert spec.loader is not None, f"no loader for {path}"
    module = importlib.util.module_from_spec(spec)
    sys.modules["netns"] = module
    spec.loader.exec_module(module)


if "netns" not in sys.modules:
    _load_netns()


@pytest.fixture(scope="session", autouse=True)
def kernel_is_usable() -> None:
    missing = [program for program in ("nft", "ip") if shutil.which(program) is None]
    if os.geteuid() != 0:
        missing.append("root")
    if missing:
        why = f"kernel tests need {', '.join(missing)}"
        if os.environ.get("CI"):
            pytest.fail(why)
        pytest.skip(why)
