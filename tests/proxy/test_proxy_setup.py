"""From a configuration to the machine: sysctls, another namespace, the file while the proxy
runs.
"""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from threading import current_thread, main_thread

import pytest
import yaml
from tests.waiting import turns

from sliceplane.node.configuration.fields import API_VERSION, KIND
from sliceplane.node.configuration.settings import ConntrackSettings, settings_of
from sliceplane.node.context import RulesConfig
from sliceplane.node.io import config as proxy_config
from sliceplane.node.io.config import ConfigError, changed, load_config, written
from sliceplane.node.io.kernel.netns import listening_in, within
from sliceplane.node.io.kernel.sysctls import SysctlError, adjust_oom_score, tune_conntrack
from sliceplane.node.io.options import CHECK_PERIOD_S
from sliceplane.node.nft.table import nft_plane
from sliceplane.node.plane import NodePlaneConfig

DEFAULTS = settings_of({}, listen_by_default=False).conntrack


def machine(folder: Path, **values: int) -> Path:
    """Sysctls as files."""
    for name, value in values.items():
        (folder / name).write_text(f"{value}\n")
    return folder


async def test_what_differs_is_written_and_nothing_else(tmp_path: Path) -> None:
    folder = machine(
        tmp_path,
        nf_conntrack_max=1000,
        nf_conntrack_tcp_timeout_established=432000,
        nf_conntrack_tcp_timeout_close_wait=3600,
    )
    (folder / "nf_conntrack_tcp_timeout_close_wait").chmod(0o444)
    hashsize = tmp_path / "hashsize"
    hashsize.write_text("16\n")
    await tune_conntrack(DEFAULTS, folder=folder, hashsize=hashsize)
    bound = int((folder / "nf_conntrack_max").read_text())
    assert bound >= 131072
    assert (folder / "nf_conntrack_tcp_timeout_established").read_text() == "86400\n"
    assert int(hashsize.read_text()) == bound // 4


async def test_a_bound_that_somebody_raised_stays_unless_another_was_asked_for(
    tmp_path: Path,
) -> None:
    folder = machine(tmp_path, nf_conntrack_max=9_000_000)
    await tune_conntrack(
        ConntrackSettings(32768, 131072), folder=folder, hashsize=tmp_path / "none"
    )
    assert (folder / "nf_conntrack_max").read_text() == "9000000\n"
    configured = ConntrackSettings(100_000, 150_000, configured=frozenset({"maxPerCore"}))
    await tune_conntrack(configured, folder=folder, hashsize=tmp_path / "none")
    assert int((folder / "nf_conntrack_max").read_text()) <= 1_048_576


async def test_what_cannot_be_had(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await tune_conntrack(DEFAULTS, folder=tmp_path / "none", hashsize=tmp_path / "none")
    with pytest.raises(
        SysctlError,
        match=r"conntrack\.udpTimeout: nf_conntrack_udp_timeout cannot be set to 5: No such",
    ):
        await tune_conntrack(
            ConntrackSettings(udp_timeout_s=5.0, configured=frozenset({"udpTimeout"})),
            folder=tmp_path,
        )
    with pytest.raises(SysctlError, match="leave it out"):
        await tune_conntrack(ConntrackSettings(tcp_be_liberal=True), folder=tmp_path)
    with pytest.raises(SysctlError, match='namespace "sp-none" cannot be entered: No such file'):
        await tune_conntrack(DEFAULTS, "sp-none", folder=tmp_path)
    adjust_oom_score(5, tmp_path / "none")
    machine(tmp_path, oom=0)
    adjust_oom_score(5, tmp_path / "oom")
    assert (tmp_path / "oom").read_text() == "5\n"


async def test_our_own_namespace_is_where_we_are() -> None:
    assert await within("", current_thread) is main_thread()
    opened = await listening_in("")("127.0.0.1", 0)
    with opened, pytest.raises(OSError, match="in use"):
        await listening_in("")("127.0.0.1", opened.getsockname()[1])
    six = await listening_in("")("::1", 0)
    with six:
        assert six.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY) == 1, (
            "the other family has its own"
        )


# The node's own address


def test_the_address_that_is_given_is_the_nodes_own() -> None:
    rules = RulesConfig(bind_address="10.9.9.9")
    four = nft_plane("IPv4", NodePlaneConfig(node_name="n", rules=rules))
    six = nft_plane("IPv6", NodePlaneConfig(node_name="n", rules=rules))
    assert four.node_port_addresses == ("10.9.9.9",)
    assert six.node_port_addresses is None, "its family is the Node's matter"
    assert (
        nft_plane("IPv4", NodePlaneConfig(node_name="n", rules=RulesConfig())).node_port_addresses
        is None
    )


# The file


def config(path: Path, **fields: object) -> Path:
    path.write_text(
        yaml.safe_dump({"apiVersion": API_VERSION, "kind": KIND, "mode": "nftables", **fields})
    )
    return path


def test_files_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="Is a directory"):
        load_config(tmp_path)
    monkeypatch.setattr(proxy_config, "FILE_BYTES_MAX", 10)
    with pytest.raises(ConfigError, match="is larger than 10 bytes"):
        load_config(config(tmp_path / "c"))


@pytest.mark.looptime
async def test_a_changed_file_is_judged_before_it_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config(tmp_path / "c", oomScoreAdj=5)
    file = load_config(path)
    check_now = asyncio.Event()
    watching = asyncio.create_task(changed(file, check_now))
    written(path, file.values)  # other bytes, the same meaning
    await asyncio.sleep(5 * CHECK_PERIOD_S)
    assert not watching.done()
    config(path, oomScoreAdj=5000)
    await asyncio.sleep(5 * CHECK_PERIOD_S)
    assert not watching.done()
    assert capsys.readouterr().err.count("the configuration file is not used") == 1, "told once"
    path.unlink()
    await asyncio.sleep(5 * CHECK_PERIOD_S)
    assert not watching.done()
    assert "No such file" in capsys.readouterr().err
    check_now.set()
    await turns()
    assert "No such file" in capsys.readouterr().err, "told again to who asks"
    config(path, oomScoreAdj=6)
    await watching
