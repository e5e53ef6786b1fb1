"""``sliceplane proxy`` with a configuration file, and what it says to whoever gives it bad input:
real processes.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kernel.netns import Host, Net
from tests.kernel.proxy_process import page, rules_in, started
from tests.ports import free_port

pytestmark = pytest.mark.kernel

KUBEADM = Path(__file__).parents[1] / "proxy" / "data" / "kubeadm-config.conf"
HEAD = (
    "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\n"
)
TIMEOUT = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established"
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.fixture(scope="module")
def node() -> Iterator[Host]:
    with Net("spf") as net:
        host = net.add_host("node", ip4="10.10.0.1/16", ip6="fd10::1/64")
        # the settings of connection tracking are there once something tracks connections
        host.exec(
            ["nft", "-f", "-"],
            stdin="add table ip t; add chain ip t c { type nat hook output priority 0; }",
        )
        yield host


def proxy(
    *arguments: str, before: tuple[str, ...] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs to its end, by the command *before*."""
    command = [*before, sys.executable, "-m", "sliceplane", "proxy", *arguments]
    everything = {**ENVIRONMENT, "KUBECONFIG": "", "HOME": "/nonexistent", **environment}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env=everything
    )


def refusal(done: subprocess.CompletedProcess[str], code: int = 1) -> str:
    """The one line that a refused start says; nothing on stdout, and no traceback."""
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    *told, last = done.stderr.splitlines()
    assert all(
        " level=warning " in line or "sage:" in line or "--help" in line or not line
        for line in told
    ), told
    assert last.startswith("Error: ")
    return last.removeprefix("Error: ")


def config(folder: Path, text: str) -> Path:
    path = folder / "config.conf"
    path.write_text(HEAD + text)
    return path


# Bad input: one line each


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert (
        refusal(proxy("--config", f"{tmp_path}/none"))
        == f"{tmp_path}/none: No such file or directory"
    )


def test_a_file_with_a_mistake(tmp_path: Path) -> None:
    path = config(tmp_path, "nodePortAddresses: [here]\n")
    assert refusal(proxy("--config", str(path))) == (
        f'{path}:4: nodePortAddresses[0]: Invalid value: "here": must be a valid CIDR'
    )


def test_a_flag_with_a_mistake() -> None:
    done = proxy("--nodeport-addresses", "here")
    assert (
        refusal(done, code=64)
        == '--nodeport-addresses: Invalid value: "here": must be a valid CIDR'
    )


def test_no_kubeconfig(tmp_path: Path) -> None:
    path = config(tmp_path, f"clientConnection: {{kubeconfig: {tmp_path}/none}}\n")
    assert (
        refusal(proxy("--config", str(path)))
        == f"kubeconfig {tmp_path}/none: No such file or directory"
    )
    assert refusal(proxy(HOME=str(tmp_path))) == (
        f"there is no kubeconfig {tmp_path}/.kube/config: name one with --kubeconfig or in "
        "KUBECONFIG; "
        "nor does 'sliceplane up' run from this user's data folder"
    )


def test_no_network_namespace() -> None:
    assert (
        refusal(proxy("--init-only", "--netns", "sp-none"))
        == 'there is no network namespace "sp-none"'
    )


def test_no_nft(tmp_path: Path) -> None:
    done = proxy("--init-only", PATH=str(tmp_path))
    assert refusal(done) == "nft was not found: install the package nftables"


def test_no_root() -> None:
    done = proxy("--init-only", before=("setpriv", "--bounding-set", "-net_admin"))
    assert refusal(done) == "changing nftables rules needs root (CAP_NET_ADMIN)"


def test_a_port_that_is_taken(tmp_path: Path, node: Host) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        path = config(tmp_path, f"healthzBindAddress: 127.0.0.1:{port}\n")
        done = proxy("--config", str(path), "--netns", node.netns, "--master", "http://127.0.0.1:9")
    assert refusal(done).startswith(
        f"cannot serve /healthz, /livez on 127.0.0.1 port {port}: Address already in use: process "
        f"{os.getpid()} ("
    )


# conntrack


def test_what_conntrack_is_told_holds_in_the_namespace_of_the_rules(
    tmp_path: Path, node: Host
) -> None:
    outside = Path(TIMEOUT).read_text()
    path = config(
        tmp_path, "conntrack: {tcpEstablishedTimeout: 1h1m1s, udpTimeout: 7s, maxPerCore: 0}\n"
    )
    done = proxy("--config", str(path), "--netns", node.netns, "--init-only")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "conntrack" not in done.stderr
    assert node.exec(["cat", TIMEOUT]).stdout == "3661\n"
    assert node.exec(["cat", "/proc/sys/net/netfilter/nf_conntrack_udp_timeout"]).stdout == "7\n"
    assert Path(TIMEOUT).read_text() == outside


def test_what_was_asked_of_conntrack_and_cannot_be_had_is_an_error(
    tmp_path: Path, node: Host
) -> None:
    path = config(tmp_path, "conntrack: {maxPerCore: 500000}\n")
    told = refusal(proxy("--config", str(path), "--netns", node.netns, "--init-only"))
    assert told.startswith("conntrack.maxPerCore: nf_conntrack_max cannot be set to ")
    assert told.endswith(": Permission denied (maxPerCore: 0 leaves it alone)")


def test_a_default_that_cannot_be_had_is_a_warning(node: Host) -> None:
    bound = int(node.exec(["cat", "/proc/sys/net/netfilter/nf_conntrack_max"]).stdout)
    wanted = max(32768 * (os.cpu_count() or 1), 131072)
    done = proxy("--netns", node.netns, "--init-only")
    assert done.returncode == 0, done.stderr
    assert node.exec(["cat", TIMEOUT]).stdout == "86400\n"
    assert ("a default of conntrack cannot be set" in done.stderr) == (wanted > bound)


# The file of a cluster, and its life


def test_a_written_file_is_taken_and_says_the_same(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert proxy("--config", str(KUBEADM), "--write-config-to", str(first)).returncode == 0
    assert proxy("--config", str(first), "--write-config-to", str(second)).returncode == 0
    assert first.read_text() == second.read_text()
    assert (
        refusal(proxy("--write-config-to", f"{tmp_path}/no/file"))
        == f"{tmp_path}/no/file: No such file or directory"
    )


async def test_the_proxy_of_a_kubeadm_cluster(tmp_path: Path, node: Host) -> None:
    """kubeadm's file but for the places on this machine: rules are written, pages answer; a broken
    file is complained of and changes nothing; another good one ends the process, to be started
    again with it.
    """
    healthz, metrics = free_port(), free_port()
    async with started("apiserver", "--secure-port", "0", "--data-dir", "memory:") as (_, line):
        text = KUBEADM.read_text()
        for before, after in (
            ("/var/lib/kube-proxy/kubeconfig.conf", line.partition("kubeconfig=")[2]),
            ('healthzBindAddress: ""', f"healthzBindAddress: 127.0.0.1:{healthz}"),
            ('metricsBindAddress: ""', f"metricsBindAddress: 127.0.0.1:{metrics}"),
            ('hostnameOverride: ""', "hostnameOverride: Node-9"),
            ("clusterCIDR: 10.244.0.0/16", "clusterCIDR: 10.66.0.0/16"),
        ):
            assert before in text
            text = text.replace(before, after)
        path = tmp_path / "config.conf"
        path.write_text(text)
        process = await asyncio.create_subprocess_exec(
            *(
                sys.executable,
                "-m",
                "sliceplane",
                "proxy",
                "--config",
                str(path),
                "--netns",
                node.netns,
            ),
            *("--cluster-cidr", "10.77.0.0/16"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=ENVIRONMENT,
        )
        assert process.stdout is not None
        assert process.stderr is not None
        async with asyncio.timeout(150):
            assert (await process.stdout.readline()).startswith(b"ready node=node-9 ")
            assert "10.66.0.0/16" in rules_in(node)
            assert (await page(healthz, "/healthz"))[0] == 200
            assert (await page(metrics, "/proxyMode"))[1] == "nftables"
            path.write_text(text + "unknown: 1\n")
            process.send_signal(signal.SIGHUP)
            said = ""
            while "the configuration file is not used" not in said:
                said += (await process.stderr.readline()).decode()
            assert "unknown: Forbidden: unknown field" in said
            assert (await page(healthz, "/healthz"))[0] == 200
            assert "--cluster-cidr" in said.partition("a flag is not used")[2].splitlines()[0]
            path.write_text(text + "# another comment\n")
            process.send_signal(signal.SIGHUP)
            assert (await page(healthz, "/healthz"))[0] == 200
            assert process.returncode is None
            path.write_text(text.replace("10.66.0.0/16", "10.88.0.0/16"))
            process.send_signal(signal.SIGHUP)
            _, rest = await process.communicate()
        assert process.returncode == 1
        assert rest.decode().splitlines()[-1] == f"Error: {path} has changed: start again to use it"
        assert "10.66.0.0/16" in rules_in(node), "the rules stay"
