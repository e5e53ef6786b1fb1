"""Flags of the node proxy: judged by the rules of the file, and what they give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from sliceplane.cli.main import main


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (
            ["--bind-address", "here"],
            '--bind-address: Invalid value: "here": must be a valid IP address',
        ),
        (
            ["--healthz-bind-address", "1.2.3.4"],
            '--healthz-bind-address: Invalid value: "1.2.3.4": must be IP:port',
        ),
        (
            ["--cluster-cidr", "10.0.0.0"],
            '--cluster-cidr: Invalid value: "10.0.0.0": must be a valid CIDR block',
        ),
        (["--nodeport-addresses", "primary,10.0.0.0/8"], "--nodeport-addresses: Invalid value"),
        (["--sync-period", "0"], '--sync-period: Invalid value: "0s": must be greater than 0'),
        (["--min-sync-period", "5"], "'5' is not a duration (1s, 500ms, 1m30s, 0)"),
        (
            ["--min-sync-period", "31s"],
            '--min-sync-period: Invalid value: "31s": must not be greater than syncPeriod',
        ),
        (["--detect-local-mode", "BridgeInterface"], "--pod-bridge-interface: Required value"),
        (["--detect-local-mode", "Magic"], "'Magic' is not one of"),
        (["--pod-interface-name-prefix", "a b"], "--pod-interface-name-prefix: Invalid value"),
        (
            ["--conntrack-min", "-1"],
            "--conntrack-min: Invalid value: -1: must be greater than or equal to 0",
        ),
        (
            ["--oom-score-adj", "2000"],
            "--oom-score-adj: Invalid value: 2000: must be within the range [-1000, 1000]",
        ),
        (["--feature-gates", "No=true"], "unrecognized feature gate: No"),
        (["--hostname-override", "  "], "--hostname-override: must not be empty"),
        (["--ipvs-scheduler", "rr"], "No such option '--ipvs-scheduler'"),
    ],
)
def test_mistakes_are_wrong_usage(flags: list[str], sentence: str) -> None:
    done = CliRunner().invoke(main, ["proxy", *flags])
    assert done.exit_code == 64, done.output
    assert sentence in " ".join(done.output.split())


def written(tmp_path: Path, *flags: str) -> dict[str, Any]:
    """The file that says what *flags* say."""
    path = tmp_path / "written.conf"
    done = CliRunner().invoke(main, ["proxy", *flags, "--write-config-to", str(path)])
    assert done.exit_code == 0, done.output
    document: dict[str, Any] = yaml.safe_load(path.read_text())
    return document


def test_each_flag_is_a_field(tmp_path: Path) -> None:
    configuration = written(
        tmp_path,
        *("--kubeconfig", "/k", "--bind-address", "fd00::1", "--healthz-bind-address", "[::1]:99"),
        *(
            "--metrics-bind-address",
            "127.0.0.1:98",
            "--iptables-sync-period",
            "10s",
            "--min-sync-period",
            "250ms",
        ),
        *("--cluster-cidr", "10.0.0.0/8,fd00::/8", "--detect-local-mode", "InterfaceNamePrefix"),
        *(
            "--pod-interface-name-prefix",
            "cali",
            "--pod-bridge-interface",
            "br0",
            "--masquerade-all",
        ),
        *(
            "--nodeport-addresses",
            "10.0.0.0/8, fd00::/8",
            "--conntrack-max-per-core",
            "0",
            "--conntrack-min",
            "7",
        ),
        *("--conntrack-tcp-timeout-established", "0", "--conntrack-tcp-timeout-close-wait", "2m"),
        *(
            "--conntrack-tcp-be-liberal",
            "--conntrack-udp-timeout",
            "3s",
            "--conntrack-udp-timeout-stream",
            "4s",
        ),
        *(
            "--oom-score-adj",
            "0",
            "--feature-gates",
            "EndpointSliceSubsetting=true",
            "--bind-address-hard-fail",
        ),
    )
    assert configuration["clientConnection"]["kubeconfig"] == "/k"
    assert (configuration["bindAddress"], configuration["bindAddressHardFail"]) == ("fd00::1", True)
    assert (configuration["healthzBindAddress"], configuration["metricsBindAddress"]) == (
        "[::1]:99",
        "127.0.0.1:98",
    )
    for section in ("nftables", "iptables"):
        assert (configuration[section]["syncPeriod"], configuration[section]["minSyncPeriod"]) == (
            "10s",
            "250ms",
        )
        assert configuration[section]["masqueradeAll"] is True
    assert (configuration["clusterCIDR"], configuration["detectLocalMode"]) == (
        "10.0.0.0/8,fd00::/8",
        "InterfaceNamePrefix",
    )
    assert configuration["detectLocal"] == {"bridgeInterface": "br0", "interfaceNamePrefix": "cali"}
    assert configuration["nodePortAddresses"] == ["10.0.0.0/8", "fd00::/8"]
    assert configuration["conntrack"] == {
        "maxPerCore": 0,
        "min": 7,
        "tcpBeLiberal": True,
        "tcpCloseWaitTimeout": "2m0s",
        "tcpEstablishedTimeout": "0s",
        "udpStreamTimeout": "4s",
        "udpTimeout": "3s",
    }
    assert (configuration["oomScoreAdj"], configuration["featureGates"]) == (
        0,
        {"EndpointSliceSubsetting": True},
    )


def test_with_a_file_the_file_decides(tmp_path: Path) -> None:
    written(tmp_path, "--cluster-cidr", "10.0.0.0/8").clear()
    first = tmp_path / "first.conf"
    (tmp_path / "written.conf").rename(first)
    configuration = written(
        tmp_path, "--config", str(first), "--cluster-cidr", "11.0.0.0/8", "--masquerade-all"
    )
    assert configuration["clusterCIDR"] == "10.0.0.0/8"
    assert configuration["nftables"]["masqueradeAll"] is False


def test_the_file_of_a_plane_needs_its_proxy(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["up", "--proxy-config", str(tmp_path / "none")])
    assert done.exit_code == 64
    assert "--proxy-config says how to write rules; add --proxy" in " ".join(done.output.split())
