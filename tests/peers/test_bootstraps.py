"""What ``sliceplane xds bootstrap`` prints is used as printed by Envoy and gRPC: plain, by
certificate, by token.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from tests.peers.test_envoy import holds, hosts, places, running
from tests.ports import free_port
from tests.server.serving import Server
from tests.waiting import eventually
from tests.xds.conftest import (
    Served,
    Shop,
    client,
    endpoint,
    grpc_program,
    host_address,
    live,
    served,
    shop,
)
from tests.xds.test_identity import account, certificate, permit, secured

from sliceplane.cli.main import main
from sliceplane.xds.bootstrap import BootstrapOptions

__all__ = ["client", "live", "secured", "served", "shop"]

pytestmark = [pytest.mark.peer, pytest.mark.asyncio, pytest.mark.timeout(600)]

WAYS = pytest.mark.parametrize("way", ["plain", "certificate", "token"])


def printed(*flags: str) -> str:
    done = CliRunner().invoke(main, ["xds", "bootstrap", *flags])
    assert done.exit_code == 0, done.output
    return done.stdout


async def credentials(way: str, live: Server, shop: Shop, folder: Path) -> tuple[str, ...]:
    """Flags, and the files that they name."""
    if way == "plain":
        return ("--insecure",)
    authority = f"--ca-file={live.plane.pki.ca_file}"
    if way == "token":
        await permit(shop, shop)
        (folder / "token").write_text(await account(shop))
        return (authority, f"--token-file={folder / 'token'}")
    for name, content in zip(
        ("key", "crt"), certificate(live.plane.pki, "edge", "system:masters"), strict=True
    ):
        (folder / name).write_bytes(content)
    return (authority, f"--cert-file={folder / 'crt'}", f"--key-file={folder / 'key'}")


def server_flag(way: str, served: Served, secured: Served) -> str:
    """By an address and by a name: they are verified in different ways."""
    host = "localhost" if way == "token" else "127.0.0.1"
    return f"--server={host}:{(served if way == 'plain' else secured).port}"


@WAYS
async def test_envoy_starts_with_it(
    way: str, tmp_path: Path, live: Server, served: Served, secured: Served, shop: Shop
) -> None:
    await shop.service()
    await shop.slice("web-1", 9000, *hosts(1, 2))
    flags = await credentials(way, live, shop, tmp_path)
    port = free_port()
    at = server_flag(way, served, secured)
    text = printed("--for=envoy", at, "--node-id=edge", f"--admin-port={port}", *flags)
    wish = BootstrapOptions(host="", port=0, node_id="edge", admin_port=port)
    async with running(tmp_path, wish, lambda _: yaml.safe_load(text)) as edge:
        await holds(edge, f"{shop.namespace}/web:http", places(1, 2))
        assert await edge.counter("update_rejected") == 0


@WAYS
async def test_python_grpc_starts_with_it(
    way: str, tmp_path: Path, live: Server, served: Served, secured: Served, shop: Shop
) -> None:
    at = host_address()
    flags = await credentials(way, live, shop, tmp_path)
    text = printed("--for=grpc", server_flag(way, served, secured), "--node-id=shop", *flags)
    asks = {"GRPC_EXPERIMENTAL_XDS_BOOTSTRAP_CALL_CREDS": "true"}
    wish = BootstrapOptions(host="", port=0, node_id="shop")
    async with grpc_program(tmp_path, wish, bootstrap=text, **asks) as program:
        backend = await program.ask("backend", at)
        await shop.service()
        await shop.slice("web-1", backend, endpoint(at, "one"))
        target = f"xds:///web.{shop.namespace}:80"
        await eventually(lambda: program.answered(target, 1), lambda ports: ports == {backend})
