"""The parts of an ipvs render that this kernel can load: addresses, sets and the rules that look
into them. (Virtual servers need a kernel with ipvs.)
"""

from __future__ import annotations

import re

import pytest
from tests.kernel.netns import Net
from tests.node.test_proxy_render import rendered

pytestmark = pytest.mark.kernel


@pytest.mark.parametrize("flavour", ["nft", "legacy"])
def test_programs_take_what_is_rendered_for_them(flavour: str) -> None:
    with Net("spv") as net:
        host = net.add_host("node", ip4="192.168.0.1/24", ip6="fd00:1::1/64")
        for family in ("IPv4", "IPv6"):
            text = rendered("ipvs", family)
            parts = re.findall(r"# ([^\n]*)\n(.*?)(?=\n# |\Z)", text, re.DOTALL)
            assert len(parts) == 4
            for program, part in parts:
                command = program.split()
                if command[0] == "ipvsadm":
                    continue
                if command[0] == "ip":
                    part = part.replace(
                        "kube-ipvs0", "lo"
                    )  # the device type "dummy" may be missing, too
                else:
                    command[0] = command[0].replace("-restore", f"-{flavour}-restore")
                host.exec(command, stdin=part)
        assert "10.96.0.10/32" in host.exec(["ip", "addr", "show", "lo"]).stdout
        assert "10.96.0.10,tcp:80" in host.exec(["ipset", "list", "KUBE-CLUSTER-IP"]).stdout
