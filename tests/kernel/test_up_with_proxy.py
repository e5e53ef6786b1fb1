"""``sliceplane up --proxy``: the plane writes a node's rules itself."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from pathlib import Path

import pytest
from tests.e2e.running import ROOT, running_plane
from tests.kernel.netns import Net
from tests.ports import free_port
from tests.waiting import until

pytestmark = [pytest.mark.kernel, pytest.mark.kubectl]


def test_rules_follow_the_manifest_without_a_proxy_of_their_own(tmp_path: Path) -> None:
    with Net("up") as net:
        host = net.add_host("node", ip4="10.244.200.1/16", ip6="fd00:10:244:c8::1/48")
        flags = ("--emulate", "--proxy", "--hostname-override", "node-1", "--netns", host.netns)
        with running_plane(tmp_path, *flags) as plane:
            environment = {"KUBECONFIG": plane.kubeconfig, "HOME": str(tmp_path)}
            manifest = str(ROOT / "demo" / "manifest.yaml")
            subprocess.run([plane.kubectl, "apply", "-f", manifest], env=environment, check=True, capture_output=True)
            rules = until(
                lambda: host.exec(["nft", "list", "table", "ip", "sliceplane"]).stdout,
                lambda rules: "numgen random mod 5" in rules,
                ignoring=(RuntimeError,),
            )
            assert "default/demo-svc/tcp/tcp" in rules
            assert host.exec(["nft", "list", "tables"]).stdout.count("sliceplane") == 2, "both families"


def test_the_proxy_of_a_plane_has_a_configuration_file(tmp_path: Path) -> None:
    config, port = tmp_path / "proxy.conf", free_port()
    config.write_text(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nclusterCIDR: 10.66.0.0/16\n"
        f"healthzBindAddress: 127.0.0.1:{port}\nhostnameOverride: node-7\n"
        "conntrack: {maxPerCore: 0, udpTimeout: 9s}\n"
    )
    with Net("uc") as net:
        host = net.add_host("node", ip4="10.244.200.1/16", ip6="fd00:10:244:c8::1/48")
        host.exec(["nft", "-f", "-"], stdin="add table ip t; add chain ip t c { type nat hook output priority 0; }")
        with running_plane(tmp_path, "--proxy", "--netns", host.netns, "--proxy-config", str(config)):
            until(
                lambda: host.exec(["nft", "list", "table", "ip", "sliceplane"]).stdout,
                lambda rules: "10.66.0.0/16" in rules,
                ignoring=(RuntimeError,),
            )
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=60) as answer:
                assert json.loads(answer.read())["healthy"]
            assert host.exec(["cat", "/proc/sys/net/netfilter/nf_conntrack_udp_timeout"]).stdout == "9\n"


def test_a_bad_configuration_file_of_the_proxy_is_one_sentence(tmp_path: Path) -> None:
    with (
        pytest.raises(AssertionError) as failure,
        running_plane(tmp_path, "--proxy", "--proxy-config", f"{tmp_path}/none"),
    ):
        pass
    assert f"Error: {tmp_path}/none: No such file or directory" in str(failure.value)
    assert "Traceback" not in str(failure.value)


def test_proxy_without_a_namespace_to_write_to_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(AssertionError) as failure, running_plane(tmp_path, "--proxy", "--netns", "sp-no-such-place"):
        pass
    assert 'Error: --proxy: there is no network namespace "sp-no-such-place"' in str(failure.value)
    assert "Traceback" not in str(failure.value)
