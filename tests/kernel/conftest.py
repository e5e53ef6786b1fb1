"""Real packets need root, nft, iptables and iproute2.  In CI their absence is a failure, elsewhere a reason to skip."""

from __future__ import annotations

import os
import shutil

import pytest


@pytest.fixture(scope="session", autouse=True)
def kernel_is_usable() -> None:
    missing = [program for program in ("nft", "ip", "iptables", "ipset") if shutil.which(program) is None]
    if os.geteuid() != 0:
        missing.append("root")
    if missing:
        why = f"kernel tests need {', '.join(missing)}"
        if os.environ.get("CI"):
            pytest.fail(why)
        pytest.skip(why)
