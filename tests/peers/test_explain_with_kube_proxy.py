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


async def test_seed_2194_a_pod_does_not_reach_itself(kube_proxy: str, tmp_path: Path) -> None:
    """The set of own connections has lost an element."""
    await agree(tmp_path, "kube-proxy nftables", range(2194, 2195), 300.0, kube_proxy)
