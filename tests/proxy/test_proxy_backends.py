"""Back ends of the node proxy: programs that fail, modes and what they leave, and what changes
while a write runs.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.iptables.restorer import Machine
from tests.nft.machine import NODE_IP, make_slice, node, service
from tests.nft.machine import Machine as NftMachine

from sliceplane.node.io.kernel import modes as proxy_modes
from sliceplane.node.io.kernel.backend import KernelError
from sliceplane.node.io.kernel.iptables_backend import Iptables
from sliceplane.node.io.kernel.nft_backend import Nftables
from sliceplane.node.io.metrics import ProxyMetrics
from sliceplane.node.iptables.text import CANARY
from sliceplane.node.plane import NodePlaneConfig


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole PATH but for a shell."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    return tmp_path


def put(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


async def test_iptables_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(KernelError) as caught:
        await Iptables().probe()
    assert (caught.value.reason, str(caught.value)) == (
        "missing",
        "iptables was not found: install the package iptables",
    )


async def test_iptables_is_too_old(programs: Path) -> None:
    put(programs, "iptables", "echo 'iptables v1.6.1'")
    with pytest.raises(
        KernelError, match=r"iptables 1\.6\.2 or newer is needed, this is iptables v1\.6\.1"
    ):
        await Iptables().probe()


async def test_a_refused_restore_says_why(programs: Path) -> None:
    put(programs, "iptables-save", "exit 0")
    put(
        programs,
        "iptables-restore",
        "cat > /dev/null; echo 'iptables-restore: line 7 failed' >&2; exit 1",
    )
    backend = Iptables()
    plane = backend.plane("IPv4", NodePlaneConfig(node_name="node-1"))
    plane.on_synced(0.0)
    transaction = plane.take_transaction(0.0)
    assert transaction is not None
    with pytest.raises(KernelError) as caught:
        await backend.write(plane, transaction)
    assert caught.value.reason == "rejected"
    assert (
        str(caught.value)
        == "iptables-restore refused the transaction: iptables-restore: line 7 failed"
    )


async def test_a_change_asks_the_kernel_nothing(programs: Path) -> None:
    put(programs, "iptables-save", f"echo save >> {programs}/calls")
    put(programs, "iptables-restore", f"echo restore >> {programs}/calls; cat > {programs}/text")
    backend = Iptables()
    plane = backend.plane("IPv4", NodePlaneConfig(node_name="node-1"))
    plane.on_synced(0.0)
    for turn in range(2):
        if turn:
            plane.on_service(None, service(), 0.0)
        transaction = plane.take_transaction(0.0)
        assert transaction is not None
        await backend.write(plane, transaction)
        plane.on_success(0.0)
    assert (programs / "calls").read_text().split() == ["save", "save", "restore", "restore"]


@pytest.mark.parametrize(("code", "there"), [(0, True), (1, False), (2, False)])
async def test_whether_rules_are_there(programs: Path, code: int, there: bool) -> None:
    put(programs, "ip6tables", f"exit {code}")
    backend = Iptables()
    assert (
        await backend.has_rules(backend.plane("IPv6", NodePlaneConfig(node_name="node-1"))) is there
    )


async def test_rules_of_a_kube_proxy_stay_when_the_mode_is_nftables(programs: Path) -> None:
    put(programs, "iptables-restore", f"cat >> {programs}/text")
    put(programs, "iptables-save", "echo '*nat'; echo ':KUBE-SERVICES - [0:0]'")
    await proxy_modes.remove_leftovers("nftables", ("IPv4",))
    assert not (programs / "text").exists()
    put(
        programs,
        "iptables-save",
        f"echo '*nat'; echo ':KUBE-SERVICES - [0:0]'; echo ':{CANARY} - [0:0]'",
    )
    await proxy_modes.remove_leftovers("nftables", ("IPv4",))
    assert "-X KUBE-SERVICES" in (programs / "text").read_text()


async def test_leftovers_without_a_program_are_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    await proxy_modes.remove_leftovers("nftables", ("IPv4",))
    await proxy_modes.remove_leftovers("iptables", ("IPv4",))
    with pytest.raises(KernelError):  # its own mode is another matter
        await proxy_modes.clean_up("iptables", ("IPv4",))


def test_modes_have_their_back_ends() -> None:
    assert isinstance(proxy_modes.backend_of("nftables"), Nftables)
    assert isinstance(proxy_modes.backend_of("iptables"), Iptables)


def test_failures_are_counted_under_the_name_of_the_mode() -> None:
    def counted(samples: ProxyMetrics) -> dict[str, float]:
        samples.on_write("IPv4", 0.1, full=True, failed=True)
        samples.on_write("IPv4", 0.1, full=False, failed=True)
        found = {
            family.name: family.samples
            for family in samples.families()
            if "failures" in family.name
        }
        return {
            name.removeprefix("kubeproxy_sync_proxy_rules_"): each[0].value
            for name, each in found.items()
        }  # type: ignore[misc]  # a counter's are numbers

    assert counted(ProxyMetrics()) == {"nftables_sync_failures_total": 2}
    assert counted(ProxyMetrics("iptables")) == {
        "iptables_restore_failures_total": 2,
        "iptables_partial_restore_failures_total": 1,
    }


def test_what_changes_during_a_write_of_everything_is_written() -> None:
    """The Node is told of while the kernel takes the first table; what is static then depends on
    it.
    """
    nft, iptables = NftMachine(), Machine()
    first = nft.plane.take_transaction(0.0)
    assert first is not None
    nft.put(
        node("a", NODE_IP),
        service(ports=[{"name": "http", "port": 80, "nodePort": 30080}], type="NodePort"),
    )
    nft.put(make_slice(["10.0.0.1"]))
    nft.kernel.run(first)
    nft.plane.on_success(0.0)
    iptables.put(*nft.known.values())
    other = "192.168.7.7"  # of the host, but not where node ports are
    nft.own = iptables.own = frozenset({NODE_IP, other})
    for found in (
        nft.send(other, 30080, path="forwarded"),
        iptables.send(other, 30080, path="forwarded"),
    ):
        assert [outcome.to for outcome in found] == [f"{other} 30080"]
    assert [outcome.to for outcome in nft.send(NODE_IP, 30080, path="forwarded")] == [
        "10.0.0.1 8080"
    ]
