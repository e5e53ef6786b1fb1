"""``sliceplane up --proxy``: the plane writes a node's rules itself."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.request
from pathlib import Path

import pytest
from tests.cli.test_the_way_to_a_plane import run
from tests.e2e.running import ROOT, kubectl, running_plane
from tests.kernel.netns import Host, Net
from tests.kernel.proxy_process import started
from tests.kernel.test_drain_hook import KUBELET, NOT_YET
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
            subprocess.run(
                [plane.kubectl, "apply", "-f", manifest],
                env=environment,
                check=True,
                capture_output=True,
            )
            until(
                lambda: host.exec(["nft", "list", "table", "ip", "sliceplane"]).stdout,
                lambda rules: len(re.findall(r" : 10\.244\.\d+\.\d+ \. 8080", rules)) == 5,
                ignoring=(RuntimeError,),
            )
            assert host.exec(["nft", "list", "tables"]).stdout.count("sliceplane") == 2, (
                "both families"
            )


def test_the_machine_of_a_plane_is_a_node_that_every_command_knows(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    ready = ("get", "node", "laptop", "-o=jsonpath={.status.conditions[?(@.type=='Ready')].status}")
    with Net("un") as net:
        host = net.add_host("node", ip4="10.77.9.1/24", ip6="fd77:9::1/64")
        flags = ("--proxy", "--hostname-override", "laptop", "--netns", host.netns)
        with running_plane(tmp_path, *flags, data_dir=data) as plane:
            assert kubectl(plane, *ready) == "True"
            shown = kubectl(
                plane, "get", "node", "laptop", "-o=jsonpath={.status.addresses[*].address}"
            )
            assert shown.split() == [host.ip4, host.ip6, "laptop"]
            until(lambda: "1 of 1 fresh" in run("status", KUBECONFIG=plane.kubeconfig).stdout)
            for question in (("lint",), ("status",), ("drift",), ("explain", "node", "laptop")):
                told = run(*question, KUBECONFIG=plane.kubeconfig)
                assert "N7" not in told.stdout, told.stdout
                assert told.returncode == 0, f"{question}: {told.stdout}{told.stderr}"
            traced = run(
                "trace", "--from", "node/laptop", "--to", "kubernetes", KUBECONFIG=plane.kubeconfig
            )
            assert "Node laptop" in traced.stdout, traced.stderr
            assert "at          node laptop" in traced.stdout
        with running_plane(tmp_path, data_dir=data) as plane:
            assert kubectl(plane, *ready) == "False", "no proxy runs"


async def test_a_second_machine_becomes_a_node_of_the_plane_where_its_proxy_is_asked_to(
    tmp_path: Path,
) -> None:
    with Net("ur") as net, running_plane(tmp_path) as plane:
        host = net.add_host("node", ip4="10.77.9.2/24", ip6="fd77:9::2/64")
        shown = (
            "get",
            "node",
            "desk",
            "-o=jsonpath={.status.conditions[*].status} {.status.addresses[0].address}",
        )
        common = (
            "--kubeconfig",
            plane.kubeconfig,
            "--hostname-override",
            "desk",
            "--netns",
            host.netns,
        )
        async with started("proxy", *common, "--register-node"):
            assert kubectl(plane, *shown) == f"True {host.ip4}"
        assert kubectl(plane, *shown) == f"False {host.ip4}"


@pytest.mark.parametrize("name", ["node-1", "laptop"])
def test_where_nodes_are_emulated_no_other_is_added(tmp_path: Path, name: str) -> None:
    """One without a zone would void hints."""
    with Net("ue") as net:
        host = net.add_host("node", ip4="10.77.9.1/24", ip6="fd77:9::1/64")
        flags = (
            "--emulate",
            "--emulate-nodes",
            "1",
            "--proxy",
            "--hostname-override",
            name,
            "--netns",
            host.netns,
        )
        with running_plane(tmp_path, *flags) as plane:
            shown = ("get", "nodes", "-o=jsonpath={.items[*].status.nodeInfo.kubeletVersion}")
            until(lambda: kubectl(plane, *shown), "sliceplane-emulated".__eq__)


def test_the_proxy_of_a_plane_has_a_configuration_file(tmp_path: Path) -> None:
    config, port = tmp_path / "proxy.conf", free_port()
    config.write_text(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nclusterCIDR: "
        "10.66.0.0/16\n"
        f"healthzBindAddress: 127.0.0.1:{port}\nhostnameOverride: node-7\n"
        "conntrack: {maxPerCore: 0, udpTimeout: 9s}\n"
    )
    with Net("uc") as net:
        host = net.add_host("node", ip4="10.244.200.1/16", ip6="fd00:10:244:c8::1/48")
        host.exec(
            ["nft", "-f", "-"],
            stdin="add table ip t; add chain ip t c { type nat hook output priority 0; }",
        )
        with running_plane(
            tmp_path, "--proxy", "--netns", host.netns, "--proxy-config", str(config)
        ):
            until(
                lambda: host.exec(["nft", "list", "table", "ip", "sliceplane"]).stdout,
                lambda rules: "10.66.0.0/16" in rules,
                ignoring=(RuntimeError,),
            )
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=60) as answer:
                assert json.loads(answer.read())["healthy"]
            assert (
                host.exec(["cat", "/proc/sys/net/netfilter/nf_conntrack_udp_timeout"]).stdout
                == "9\n"
            )


def test_a_bad_configuration_file_of_the_proxy_is_one_sentence(tmp_path: Path) -> None:
    with (
        pytest.raises(AssertionError) as failure,
        running_plane(tmp_path, "--proxy", "--proxy-config", f"{tmp_path}/none"),
    ):
        pass
    assert f"Error: {tmp_path}/none: No such file or directory" in str(failure.value)
    assert "Traceback" not in str(failure.value)


def test_proxy_without_a_namespace_to_write_to_is_one_sentence(tmp_path: Path) -> None:
    with (
        pytest.raises(AssertionError) as failure,
        running_plane(tmp_path, "--proxy", "--netns", "sp-no-such-place"),
    ):
        pass
    assert 'Error: --proxy: there is no network namespace "sp-no-such-place"' in str(failure.value)
    assert "Traceback" not in str(failure.value)


def test_a_pod_is_drained_by_its_own_hook_and_kubectl_waits_for_it(tmp_path: Path) -> None:
    """As installed: the annotation in the template, ``preStop`` to the Pod's own address, the
    condition, kubectl.
    """
    with Net("ud") as net:
        node = net.add_host("node", ip4="10.77.4.1/24", ip6="fd77:4::1/64")
        hosts = [
            net.add_host(f"pod{n}", ip4=f"10.77.4.{n}/24", ip6=f"fd77:4::{n}/64") for n in (2, 3)
        ]
        flags = (
            "--proxy",
            "--hostname-override",
            "node-1",
            "--netns",
            node.netns,
            "--drain-port",
            "10261",
        )
        with running_plane(tmp_path, *flags) as plane:
            kubectl(plane, "apply", "-f", "-", document=shop(*hosts))
            for number, host in enumerate(hosts):
                kubectl(
                    plane,
                    "patch",
                    "pod",
                    f"web-{number}",
                    "--subresource=status",
                    "-p",
                    status(host),
                )
            until(
                lambda: node.converse(KUBELET, f"{hosts[0].ip4} /drain?timeout=0").strip(),
                NOT_YET.__eq__,
            )
            slices = (
                "get",
                "endpointslices",
                "-o=jsonpath={.items[*].endpoints[*].conditions.ready}",
            )
            until(lambda: kubectl(plane, *slices).split() == ["true"] * 4)
            kubectl(plane, "delete", "pod", "web-0", "--wait=false")
            hooks = [
                node.converse(KUBELET, f"{host} /drain?timeout=60").strip()
                for host in (hosts[0].ip4, hosts[0].ip6)
            ]
            kubectl(
                plane,
                "wait",
                "pod/web-0",
                "--for=condition=sliceplane.dev/Drained",
                "--timeout=60s",
            )
            shown = "-o=jsonpath={.status.conditions[?(@.type=='sliceplane.dev/Drained')].message}"
            message = kubectl(plane, "get", "pod", "web-0", shown)
            assert re.fullmatch(r"revision \d+, 1 nodes, \d+ ms", message), message
            assert hooks == [f"200 drained: {message}"] * 2


def shop(*hosts: Host) -> str:
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web"},
        "spec": {
            "selector": {"app": "web"},
            "ports": [{"port": 80}],
            "ipFamilyPolicy": "RequireDualStack",
        },
    }
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    machine = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"}, "status": ready}
    pods = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"web-{number}",
                "labels": {"app": "web"},
                "annotations": {"sliceplane.dev/drain-barrier": "true"},
            },
            "spec": {"nodeName": "node-1", "containers": [{"name": "web", "image": "web"}]},
        }
        for number, _ in enumerate(hosts)
    ]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": [machine, service, *pods]})


def status(host: Host) -> str:
    ready = [{"type": "Ready", "status": "True"}]
    ips = [{"ip": host.ip4}, {"ip": host.ip6}]
    return json.dumps(
        {"status": {"phase": "Running", "podIP": host.ip4, "podIPs": ips, "conditions": ready}}
    )


def test_a_drain_port_without_a_proxy_is_one_sentence(tmp_path: Path) -> None:
    with (
        pytest.raises(AssertionError, match="add --proxy"),
        running_plane(tmp_path, "--drain-port", "10261"),
    ):
        pass
