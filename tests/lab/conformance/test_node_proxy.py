"""Our own proxy in a namespace of its own, judged by the rules that it wrote."""

from __future__ import annotations

import sys

import pytest
from tests.lab.conformance.test_stage import judged

from sliceplane.lab.conformance.consumers.node_proxy import NodeProxyConsumer
from sliceplane.lab.conformance.stage import SilentConsumer

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(300)]

OURS = (
    f"{sys.executable} -m sliceplane proxy --hostname-override {{node}} --conntrack-max-per-core 0"
)


@pytest.mark.parametrize("mode", ["nftables", "iptables"])
async def test_our_proxy_follows_a_policy_that_changes(mode: str) -> None:
    consumer = NodeProxyConsumer(f"{OURS} --proxy-mode {mode}", patience_s=120.0)
    (verdict,) = await judged(consumer, "policy-changes", shrink=False)
    assert (verdict.outcome, verdict.why) == ("passed", "")


async def test_a_proxy_that_ends_is_told_with_its_last_words() -> None:
    consumer = NodeProxyConsumer(
        f"{sys.executable} -c 'raise SystemExit(\"no rules\")'", patience_s=120.0
    )
    with pytest.raises(SilentConsumer, match="it ended: exit code 1 / no rules"):
        await judged(consumer, "only-an-empty-slice", shrink=False)
