"""The flags of authentication and limits: the same for the whole plane and for the API server
alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from tests.cli.test_each_flag_reaches_its_setting import KUBECONFIG

from sliceplane.cli.main import main
from sliceplane.cli.run.access import access_options, with_access
from sliceplane.kit.io.tls.acceptor import FrontProxies
from sliceplane.server.io.plane import PlaneConfig


def parsed(*arguments: str) -> PlaneConfig:
    """What the flags make of a configuration."""
    configs: list[PlaneConfig] = []

    @click.command()
    @access_options
    def command(**flags: Any) -> None:
        configs.append(with_access(PlaneConfig(), flags))

    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 0, done.output
    return configs[0]


def test_without_flags_nothing_differs() -> None:
    assert parsed() == PlaneConfig()


def test_every_flag_counts(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    config = parsed(
        "--advertise-address=192.0.2.1",
        f"--token-auth-file={file}",
        f"--client-ca-file={file}",
        f"--requestheader-client-ca-file={file}",
        "--requestheader-allowed-names=a, b",
        "--anonymous-auth=false",
        "--service-account-issuer=https://i",
        f"--service-account-signing-key-file={file}",
        f"--service-account-key-file={file}",
        "--service-account-jwks-uri=https://k",
        "--api-audiences=a, b",
        "--max-requests-inflight=1",
        "--max-mutating-requests-inflight=2",
    )
    assert (config.advertise_address, config.anonymous, config.jwks_url) == (
        "192.0.2.1",
        False,
        "https://k",
    )
    assert (config.token_auth_file, config.client_ca_file) == (file, file)
    assert config.front_proxies == FrontProxies(file, frozenset("ab"))
    assert (config.tokens.issuer, config.tokens.audiences) == ("https://i", ("a", "b"))
    assert (config.tokens.signing_key_file, config.tokens.key_files) == (file, (file,))
    assert (config.limits.reads_max, config.limits.writes_max) == (1, 2)


def test_names_of_front_proxies_alone_are_nothing_as_upstream() -> None:
    assert parsed("--requestheader-allowed-names=a").front_proxies is None


@pytest.mark.parametrize("flag", ["--proxy-client-cert-file", "--proxy-client-key-file"])
def test_a_certificate_without_its_key_is_wrong_usage(flag: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    serving = [f"--tls-cert-file={file}", f"--tls-private-key-file={file}"]
    (tmp_path / "kubeconfig").write_text(KUBECONFIG)
    way = f"--upstream={tmp_path / 'kubeconfig'}"
    done = CliRunner().invoke(main, ["relay", way, *serving, f"{flag}={file}"])
    assert done.exit_code == 64
    assert "go together" in done.output


def test_an_issuer_without_a_name_is_wrong_usage() -> None:
    done = CliRunner().invoke(
        main, ["up", "--data-dir", "memory:", "--secure-port", "0", "--service-account-issuer="]
    )
    assert done.exit_code == 64
    assert "'--service-account-issuer': it must not be empty" in done.output


@pytest.mark.parametrize("command", ["up", "apiserver"])
def test_both_commands_have_them(command: str) -> None:
    def flags(of: click.Command) -> set[str]:
        return {flag for parameter in of.params for flag in parameter.opts}

    loaded = main.get_command(click.Context(main), command)
    assert loaded is not None
    assert flags(access_options(click.Command("none"))) <= flags(loaded)
