"""``sliceplane proxy render``: what a node would have, printed. Each mode and family against a
golden file; after a change that is meant, ``GOLDEN=write pytest tests/node`` writes them
anew, and the difference is for the reviewer.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.iptables.fake import FakeTables

from sliceplane.cli.main import main

HERE = Path(__file__).parent
OBJECTS = HERE / "objects.yaml"
MODES = ("nftables", "iptables", "ipvs", "kernelspace")


def render(*arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(main, ["proxy", "render", *arguments], input=stdin)


def rendered(mode: str, family: str = "IPv4", *more: str) -> str:
    node = ("--hostname-override", "node-1", "--detect-local-mode", "NodeCIDR")
    result = render(
        "--proxy-mode", mode, "--filename", str(OBJECTS), "--ip-family", family, *node, *more
    )
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("family", ["IPv4", "IPv6"])
@pytest.mark.parametrize("mode", MODES)
def test_golden(mode: str, family: str) -> None:
    golden = HERE / "golden" / f"{mode}-{family.lower()}.txt"
    text = rendered(mode, family)
    if os.environ.get("GOLDEN") == "write":
        golden.write_text(text)
    assert text == golden.read_text()


@pytest.mark.parametrize("mode", MODES)
def test_the_order_of_objects_does_not_matter(mode: str, tmp_path: Path) -> None:
    documents = OBJECTS.read_text().split("---\n")
    turned = tmp_path / "turned.yaml"
    turned.write_text("---\n".join(reversed(documents)))
    node = ("--hostname-override", "node-1", "--detect-local-mode", "NodeCIDR")
    assert render("--proxy-mode", mode, "--filename", str(turned), *node).stdout == rendered(mode)


def test_iptables_text_is_what_a_kernel_takes() -> None:
    kernel = FakeTables()
    kernel.restore(rendered("iptables"))
    assert any("10.96.0.10/32" in rule for rule in kernel.tables["nat"]["KUBE-SERVICES"])


@pytest.mark.parametrize(
    ("family", "own", "length"), [("IPv4", "192.168.0.1", 32), ("IPv6", "[fd00:1::1]", 128)]
)
def test_ipvs_parts_belong_together(family: str, own: str, length: int) -> None:
    """Every address that is served is on the device and in a set; every set that a rule looks into
    is made.
    """
    text = rendered("ipvs", family)
    parts = dict(re.findall(r"# (\S+)[^\n]*\n(.*?)(?=\n# |\Z)", text, re.DOTALL))
    rules = "iptables-restore" if family == "IPv4" else "ip6tables-restore"
    assert list(parts) == ["ip", "ipvsadm", "ipset", rules]
    served = set(re.findall(r"^-A \S+ (\S+):\d+ ", parts["ipvsadm"], re.MULTILINE))
    there = set(re.findall(rf"address replace (\S+)/{length} ", parts["ip"]))
    assert there
    assert served - {own} == {f"[{ip}]" if ":" in ip else ip for ip in there}
    made = set(re.findall(r"^create (\S+)", parts["ipset"], re.MULTILINE))
    assert set(re.findall(r"--match-set (\S+)", parts[rules])) <= made
    assert all(len(name) <= 31 for name in made)


def test_hns_policies_name_known_endpoints() -> None:
    document = json.loads(rendered("kernelspace"))
    known = {
        each["IpConfigurations"][0]["IpAddress"]: each["Flags"] for each in document["Endpoints"]
    }
    assert known["10.244.1.10"] == 0
    assert known["10.244.2.10"] == 1
    policies = document["LoadBalancers"]
    assert {
        ip for each in policies for ip in each["Policy"]["HostComputeEndpoints"]
    } <= known.keys()
    (web,) = (each for each in policies if each["ServicePort"] == "shop/web:http")
    assert web["LeftOut"] == ["10.244.2.12 8081"]
    assert not any(each["ServicePort"] == "shop/empty:http" for each in policies)


def test_json_from_standard_input_as_kubectl_prints_it() -> None:
    service = {
        "metadata": {"name": "a", "namespace": "b"},
        "spec": {"clusterIP": "10.0.0.1", "ports": [{"port": 1}]},
    }
    text = json.dumps({"kind": "ServiceList", "apiVersion": "v1", "items": [service]})
    result = render("--proxy-mode", "iptables", "--filename", "-", stdin=text)
    assert result.exit_code == 0, result.output
    assert "-d 10.0.0.1/32" in result.stdout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "standard input is neither YAML nor JSON"),
        ("just words", "standard input has something that is no object: just words"),
        ("{kind: Service, metadata: {name: [1]}}", "standard input: a Service cannot be read"),
        (
            "{kind: Servce, metadata: {name: a}}",
            "standard input: there is no kind 'Servce'; did you mean 'Service'?",
        ),
        ("{kind: Deployment, metadata: {name: a}}", "in standard input, only Deployment"),
        ("{kind: Node, metadata: {name: node-1}}", "name one with --hostname-override, of node-1"),
    ],
)
def test_what_cannot_be_read(text: str, message: str) -> None:
    result = render("--filename", "-", stdin=text)
    assert result.exit_code == 1
    assert message in result.stderr


def test_a_manifest_has_kinds_that_a_proxy_has_no_use_for() -> None:
    """ServiceAccount is no misspelt Service."""
    text = "{kind: ServiceAccount, metadata: {name: a}}\n---\n{kind: Service, metadata: {name: a, namespace: b}}\n"
    result = render("--filename", "-", stdin=text)
    assert (result.exit_code, result.stderr.partition(":")[0]) == (0, "Note"), result.output


def test_two_sources_are_one_too_many() -> None:
    result = render("--filename", str(OBJECTS), "--kubeconfig", "x")
    assert result.exit_code == 64
    assert "only one of them" in result.stderr
