"""Runs ``nft``: one process for one transaction, the text by standard input, in a network namespace if asked.

Why the program and not netlink messages: its text is the interface that nftables keeps stable, and what an
administrator reads in a log is what was sent.  All that can go wrong becomes one ``NftError`` with a sentence for
people; nothing else leaves this module but cancellation.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from typing import IO, Literal

from sliceplane.nft.objects import Memory, TableRef
from sliceplane.shell.nft_generation import generation

#: the oldest that understands what we write (reference A6)
VERSION_MIN = (1, 0, 1)
TIMEOUT_S = 60.0
_MESSAGE_LENGTH_MAX = 400

Reason = Literal["missing", "permission", "namespace", "version", "rejected", "timeout"]

#: everything that the ruleset needs of nft and the kernel, in small; ``nft --check`` says whether it is there
_PROBE = """\
add table ip sliceplane-probe
add map ip sliceplane-probe endpoints { typeof numgen random mod 2 : ip daddr . tcp dport; }
add map ip sliceplane-probe services { type ipv4_addr . inet_proto . inet_service : verdict; }
add chain ip sliceplane-probe output { type nat hook output priority -100; }
add chain ip sliceplane-probe service
add rule ip sliceplane-probe service meta l4proto tcp dnat ip to numgen random mod 2 offset 2 map @endpoints
add rule ip sliceplane-probe output ip daddr . meta l4proto . th dport vmap @services
add set ip sliceplane-probe clients { type ipv4_addr; flags dynamic,timeout; timeout 10s; }
add rule ip sliceplane-probe service update @clients { ip saddr }
add rule ip sliceplane-probe output fib daddr type local meta mark set meta mark or 0x4000
add rule ip sliceplane-probe output numgen random mod 1 vmap { 0 : goto service }
"""


class NftError(Exception):
    """``nft`` could not do it; ``str()`` is one sentence for people, ``reason`` is for programs."""

    def __init__(self, reason: Reason, sentence: str) -> None:
        super().__init__(sentence)
        self.reason: Reason = reason


class NftRunner:
    """Runs transactions in one network namespace (``netns``: a name under /run/netns; "" is our own).

    Calls may run side by side; the kernel takes one transaction at a time.
    """

    def __init__(self, *, netns: str = "", program: str = "nft", timeout_s: float = TIMEOUT_S) -> None:
        self._netns = netns
        self._program = program
        self._timeout_s = timeout_s
        self._running = self._taken = 0
        self._of_others: int | None = None

    async def run(self, text: str) -> None:
        """The kernel takes all of *text* or nothing.  Raises ``NftError``."""
        self._running += 1
        try:
            await self._nft("-f", "-", stdin=text)
            self._taken += 1
        except NftError as error:
            if error.reason != "rejected":
                self._of_others = None  # nobody knows whether the kernel took it
            raise
        finally:
            self._running -= 1

    def disturbed(self) -> bool:
        """Whether somebody else changed rules, ours perhaps, since this was last asked, as far as the kernel tells;
        what it cannot tell now, because a transaction of ours runs, it tells the next time.  Cheap at any size."""
        found = None if self._running else generation(self._netns)
        if found is None:
            return False
        before, self._of_others = self._of_others, (found - self._taken) % 2**32
        return before is not None and before != self._of_others

    async def tables(self) -> frozenset[TableRef]:
        """The tables of IPv4 and IPv6 that there are, whoever made them; cheap at any size.  Raises ``NftError``."""
        found = re.findall(r"^table (ip6?) (\S+)$", await self._nft("list", "tables"), re.MULTILINE)
        return frozenset(TableRef(family, name) for family, name in found)

    async def memory(self, table: TableRef) -> Memory:
        """What packets have put into the dynamic sets of *table*; nothing where there is no table.  Raises
        ``NftError``."""
        if table not in await self.tables():
            return {}
        listed = json.loads(await self._nft("-j", "list", "sets", "table", table.family, table.name))
        return {
            entry["set"]["name"]: tuple(
                (each["elem"]["val"], each["elem"].get("expires", 0))
                for each in entry["set"].get("elem", ())
                if isinstance(each, dict) and "elem" in each
            )
            for entry in listed["nftables"]
            if "timeout" in entry.get("set", {}).get("flags", ())
        }

    async def probe(self) -> tuple[int, ...]:
        """nft's version, once it and the kernel proved able to hold our rules.  Changes nothing.  Raises
        ``NftError``."""
        answer = await self._nft("--version")
        version = parse_version(answer)
        if version is None or version < VERSION_MIN:
            wanted = ".".join(map(str, VERSION_MIN))
            raise NftError("version", f"nft {wanted} or newer is needed, this is {answer.strip() or 'unknown'}")
        await self._nft("--check", "-f", "-", stdin=_PROBE)
        return version

    async def _nft(self, *arguments: str, stdin: str = "") -> str:
        command = [self._program, *arguments]
        if self._netns:
            command = ["ip", "netns", "exec", self._netns, *command]
        with _in_memory(stdin) as text:
            try:
                process = await asyncio.create_subprocess_exec(
                    *command, stdin=text, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
                )
            except OSError as error:
                raise _no_start(command[0], error) from error
        try:
            async with asyncio.timeout(self._timeout_s):
                stdout, stderr = await process.communicate()
        except TimeoutError as error:
            raise NftError("timeout", f"nft did not answer within {self._timeout_s:g} s") from error
        finally:
            # Timed out or cancelled: what has not reached the kernel never will, what has is whole.
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0:
            raise explain(stderr.decode(errors="replace"), process.returncode or 0, self._netns)
        return stdout.decode(errors="replace")


def _in_memory(text: str) -> IO[bytes]:
    """A file to read *text* from.  Not a pipe: a program that ends without reading (``--version``, or one that found
    an error early) would leave us writing to a closed one, and a large transaction would be fed in pieces."""
    file = os.fdopen(os.memfd_create("nft"), "w+b")
    file.write(text.encode())
    file.seek(0)
    return file


def parse_version(text: str) -> tuple[int, ...] | None:
    """``nftables v1.0.6 (Lester Gooch #5)`` -> (1, 0, 6)"""
    found = re.search(r"v(\d+(?:\.\d+)+)", text)
    return tuple(map(int, found.group(1).split("."))) if found else None


def explain(stderr: str, code: int, netns: str) -> NftError:
    """What a failed run means, from what nft (or ip netns) printed."""
    if "Cannot open network namespace" in stderr:
        return NftError("namespace", f'there is no network namespace "{netns}"')
    if "exec of" in stderr and "failed" in stderr:
        return NftError("missing", "nft was not found: install the package nftables")
    if "Operation not permitted" in stderr or "must be root" in stderr:
        return NftError("permission", "changing nftables rules needs root (CAP_NET_ADMIN)")
    if re.search(r"^flush chain \S+ \S+ writer-", stderr, re.MULTILINE):
        return NftError("rejected", "our table was removed, or replaced by another process: a second node proxy?")
    first = next((line.strip() for line in stderr.splitlines() if line.strip()), f"exit code {code}")
    if len(first) > _MESSAGE_LENGTH_MAX:
        first = first[:_MESSAGE_LENGTH_MAX] + "..."
    return NftError("rejected", f"nft refused the transaction: {first}")


def _no_start(program: str, error: OSError) -> NftError:
    if isinstance(error, FileNotFoundError):
        package = "iproute2" if program == "ip" else "nftables"
        return NftError("missing", f"{program} was not found: install the package {package}")
    return NftError("permission", f"{program} could not be started: {error.strerror}")
