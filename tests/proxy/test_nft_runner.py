"""Running nft: everything that can go wrong is one typed error with a sentence for people."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import eventually

from sliceplane.node.io.kernel.nft_backend import NftError, NftRunner, explain
from sliceplane.node.io.kernel.program import parse_version


def program(folder: Path, script: str) -> str:
    """A stand-in for nft."""
    path = folder / "nft"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def failure(runner: NftRunner) -> NftError:
    with pytest.raises(NftError) as caught:
        await runner.run("add table ip x\n")
    return caught.value


async def test_the_text_arrives_whole(tmp_path: Path) -> None:
    text = "add table ip x\n" * 100_000
    await NftRunner(program=program(tmp_path, f'test "$*" = "-f -" && cat > {tmp_path}/got')).run(
        text
    )
    assert (tmp_path / "got").read_text() == text


async def test_missing_program() -> None:
    error = await failure(NftRunner(program="/nonexistent/nft"))
    assert (error.reason, str(error)) == (
        "missing",
        "/nonexistent/nft was not found: install the package nftables",
    )
    assert isinstance(error.__cause__, FileNotFoundError)


async def test_program_that_may_not_be_run(tmp_path: Path) -> None:
    path = tmp_path / "nft"
    path.write_text("")
    assert (await failure(NftRunner(program=str(path)))).reason == "permission"


async def test_refused(tmp_path: Path) -> None:
    script = (
        'cat > /dev/null; echo "/dev/stdin:1:1-3: Error: Could not process rule: File exists" '
        ">&2; exit 1"
    )
    error = await failure(NftRunner(program=program(tmp_path, script)))
    assert error.reason == "rejected"
    assert str(error) == (
        "nft refused the transaction: /dev/stdin:1:1-3: Error: Could not process rule: File exists"
    )


async def test_a_process_that_hangs_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, start = [], asyncio.create_subprocess_exec

    async def remember(*command: str, **options: Any) -> asyncio.subprocess.Process:
        started.append(await start(*command, **options))
        return started[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", remember)
    runner = NftRunner(program=program(tmp_path, "exec sleep 60"), timeout_s=0.3)
    assert (await failure(runner)).reason == "timeout"
    (process,) = started
    assert process.returncode == -signal.SIGKILL


async def test_cancelled_leaves_no_process(tmp_path: Path) -> None:
    runner = NftRunner(program=program(tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 60"))
    task = asyncio.create_task(runner.run(""))
    await eventually((tmp_path / "pid").read_text, ignoring=(FileNotFoundError,))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    pid = int((tmp_path / "pid").read_text())
    assert gone(pid)


@pytest.mark.parametrize(
    ("stderr", "reason"),
    [
        ("Error: Could not process rule: Operation not permitted\nadd table ip x", "permission"),
        ("netlink: Error: cache initialization failed: Operation not permitted", "permission"),
        ("/dev/stdin:1:1-3: Error: syntax error, unexpected string", "rejected"),
        ('Cannot open network namespace "x": No such file or directory', "namespace"),
        ('exec of "nft" failed: No such file or directory', "missing"),
        ("", "rejected"),
    ],
)
def test_explain(stderr: str, reason: str) -> None:
    error = explain(stderr, 1, "x")
    assert error.reason == reason
    assert "\n" not in str(error)


def test_an_error_never_repeats_a_megabyte() -> None:
    assert len(str(explain("Error: " + "x" * 1_000_000, 1, ""))) < 500


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("nftables v1.0.6 (Lester Gooch #5)", (1, 0, 6)),
        ("nftables v0.9.8 (E.D.S.)", (0, 9, 8)),
        ("nft?", None),
    ],
)
def test_version(text: str, version: tuple[int, ...] | None) -> None:
    assert parse_version(text) == version


async def test_probe_refuses_old_programs(tmp_path: Path) -> None:
    runner = NftRunner(program=program(tmp_path, "echo 'nftables v0.9.8 (E.D.S.)'"))
    with pytest.raises(
        NftError, match=r"nft 1\.0\.1 or newer is needed, this is nftables v0\.9\.8"
    ) as caught:
        await runner.probe()
    assert caught.value.reason == "version"


async def test_probe(tmp_path: Path) -> None:
    script = (
        'if test "$1" = --version; then echo "nftables v1.0.9 (Old Doc Yak #3)"; else cat > '
        '"$(dirname $0)/got"; fi'
    )
    assert await NftRunner(program=program(tmp_path, script)).probe() == (1, 0, 9)
    assert "numgen" in (tmp_path / "got").read_text()
