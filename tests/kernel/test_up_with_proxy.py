"""``sliceplane up --proxy``: the plane writes a node's rules itself."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from tests.e2e.running import ROOT, running_plane
from tests.kernel.netns import Net, run

pytestmark = [pytest.mark.kernel, pytest.mark.kubectl]


def test_rules_follow_the_manifest_without_a_proxy_of_their_own(tmp_path: Path) -> None:
    with Net("up") as net:
        host = net.add_host("node", ip4="10.244.200.1/16", ip6="fd00:10:244:c8::1/48")
        flags = ("--emulate", "--proxy", "--hostname-override", "node-1", "--netns", host.netns)
        with running_plane(tmp_path, *flags) as plane:
            environment = {"KUBECONFIG": plane.kubeconfig, "HOME": str(tmp_path)}
            manifest = str(ROOT / "demo" / "manifest.yaml")
            subprocess.run([plane.kubectl, "apply", "-f", manifest], env=environment, check=True, capture_output=True)
            deadline = time.monotonic() + 20
            rules = ""
            while "numgen random mod 5" not in rules and time.monotonic() < deadline:
                rules = run(["ip", "netns", "exec", host.netns, "nft", "list", "table", "ip", "sliceplane"]).stdout
                time.sleep(0.05)
            assert "default/demo-svc/tcp/tcp" in rules
            assert "numgen random mod 5" in rules
            assert host.exec(["nft", "list", "tables"]).stdout.count("sliceplane") == 2, "both families"


def test_proxy_without_a_namespace_to_write_to_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(AssertionError) as failure, running_plane(tmp_path, "--proxy", "--netns", "sp-no-such-place"):
        pass
    assert 'Error: --proxy: there is no network namespace "sp-no-such-place"' in str(failure.value)
    assert "Traceback" not in str(failure.value)
