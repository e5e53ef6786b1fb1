"""The doors of the xDS server, and certificates that are renewed while they are open."""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.waiting import eventually
from tests.xds.echo import Echo

from sliceplane.kit.io.start_error import StartError
from sliceplane.kit.rng import Rng
from sliceplane.server.io.keys.pki import Pki, ensure
from sliceplane.xds.io.serving import Doors, XdsDoors

NO_API: Any = None


def doors_of(pki: Pki) -> Doors:
    return Doors(
        tls=("127.0.0.1", 0),
        cert_file=pki.server_file,
        key_file=pki.server_key_file,
        client_ca_file=pki.ca_file,
    )


async def test_certificates_are_what_the_files_hold_now(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, _ = ensure(tmp_path / "first", ("localhost",), time.time())
    second, _ = ensure(tmp_path / "second", ("localhost",), time.time())
    opened = XdsDoors(doors_of(first), Echo(), NO_API, Rng(1), time.time)
    ((_, port),) = await opened.open()
    following = asyncio.create_task(opened.follow(0.01))

    async def shown() -> str:
        return await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port))

    try:
        before = await shown()
        assert ssl.PEM_cert_to_DER_cert(before) == der(first)
        # Damaged for a moment, as when it is written in two steps: the one of before stays.
        first.server_key_file.write_bytes(b"half of it")
        await eventually(lambda: "the previous ones stay in use" in capsys.readouterr().err)
        assert await shown() == before
        for mine, theirs in (
            (first.server_file, second.server_file),
            (first.server_key_file, second.server_key_file),
            (first.ca_file, second.ca_file),
        ):
            mine.write_bytes(theirs.read_bytes())
            os.utime(mine, ns=(1, 1))
        assert await eventually(shown, lambda found: found != before, ignoring=(OSError,))
        assert ssl.PEM_cert_to_DER_cert(await eventually(shown, ignoring=(OSError,))) == der(second)
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await opened.close(0.0)


def der(pki: Pki) -> bytes:
    return ssl.PEM_cert_to_DER_cert(pki.server_file.read_text())


async def test_without_tls_it_is_on_loopback_or_not_at_all() -> None:
    opened = XdsDoors(Doors(plain=("0.0.0.0", 0)), Echo(), NO_API, Rng(1), time.time)
    with pytest.raises(
        StartError,
        match=r"a port without TLS needs a loopback address: 0\.0\.0\.0 is none",
    ):
        await opened.open()
    await opened.close(0.0)


async def test_both_doors_are_one_listener(tmp_path: Path) -> None:
    pki, _ = ensure(tmp_path, ("localhost",), time.time())
    both = replace(doors_of(pki), plain=("127.0.0.1", 0))
    opened = XdsDoors(both, Echo(), NO_API, Rng(1), time.time)
    secured, plain = await opened.open()
    reader, writer = await asyncio.open_connection(*plain)
    assert (await reader.read(9))[3] == 4, "SETTINGS come first"
    assert secured != plain
    names = [family.name for family in opened.listener.metrics.families()]
    assert len(names) == len(set(names))
    writer.close()
    await opened.close(0.0)
