"""``explain --kernel`` says what packets find out where a real kube-proxy writes the rules."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.kernel.oracle.field import ProxyKind
from tests.kernel.test_oracle import agree

pytestmark = [pytest.mark.peer, pytest.mark.kernel, pytest.mark.timeout(1200)]


@pytest.mark.parametrize("proxy", ["kube-proxy iptables", "kube-proxy nftables"])
async def test_explain_agrees_with_packets(
    kube_proxy: str, tmp_path: Path, proxy: ProxyKind
) -> None:
    await agree(tmp_path, proxy, range(200, 208), 300.0, kube_proxy)
