"""iptables as a back end of the node proxy: ``node.iptables.table`` over the programs of the
package iptables.

Both flavours work, legacy and nf_tables: the programs with the plain names are those that the host
uses. A change does not query the kernel. A full write lists our two tables first, to find missing
jumps and obsolete chains (``node.iptables.saved``).
"""

from __future__ import annotations

from typing import Final, Literal

from sliceplane.kit.ip import Family
from sliceplane.node.drain_redirection import CHAIN, JUMP, iptables_redirection
from sliceplane.node.io.kernel.backend import KernelError
from sliceplane.node.io.kernel.program import KernelProgram
from sliceplane.node.iptables.layout import CANARY_RULE, TABLES
from sliceplane.node.iptables.saved import ListedRules, differences, parse_saved, removal, rules_of
from sliceplane.node.iptables.table import IptablesPlane, IptablesTransaction, iptables_plane
from sliceplane.node.iptables.text import CANARY, comment, match_recent, one_in, set_recent
from sliceplane.node.plane import NodePlaneConfig

#: the oldest version whose ``iptables-restore`` waits for the lock, and that has ``MASQUERADE
#: --random-fully``
VERSION_MIN: Final = (1, 6, 2)
TIMEOUT_S: Final = 60.0
#: additional seconds for each line of a restore; the nf_tables flavour took 0.4 ms on a busy machine
LINE_TIMEOUT_S: Final = 0.005
#: seconds to wait for the lock of the legacy flavour, which another program may hold
LOCK_WAIT_S: Final = 5

Flavour = Literal["", "nft", "legacy"]

_PROGRAM: dict[Family, str] = {"IPv4": "iptables", "IPv6": "ip6tables"}
_ADDRESS: dict[Family, str] = {"IPv4": "192.0.2.1:1", "IPv6": "[2001:db8::1]:1"}


class IptablesError(KernelError):
    """A program of iptables failed."""


class Iptables:
    """A ``backend.RulesBackend``.  *flavour* "": the host's own ``iptables``."""

    mode: Literal["iptables"] = "iptables"

    def __init__(
        self, *, netns: str = "", flavour: Flavour = "", timeout_s: float = TIMEOUT_S
    ) -> None:
        self._flavour = f"-{flavour}" if flavour else ""
        self._programs = KernelProgram(
            netns=netns,
            timeout_s=timeout_s,
            package="iptables",
            rules="iptables",
            error=IptablesError,
        )
        self.writes_by_transport = {"iptables-restore": 0}

    def plane(self, family: Family, config: NodePlaneConfig) -> IptablesPlane:
        return iptables_plane(family, config)

    async def probe(self) -> None:
        answer = await self._run("IPv4", "", "--version")
        self._programs.check_version("iptables", answer, VERSION_MIN)
        await self._restore("IPv4", _probe_text("IPv4"), "--test")

    async def prepare(self, plane: IptablesPlane) -> None:
        """Does nothing: ``write`` itself lists the rules before a full write."""

    async def write(self, plane: IptablesPlane, transaction: IptablesTransaction) -> None:
        if transaction.full:
            await self._restore(
                plane.family, transaction.render(await self.list_rules(plane.family))
            )
        else:
            await self._restore(plane.family, transaction.render())
        self.writes_by_transport["iptables-restore"] += 1

    async def has_rules(self, plane: IptablesPlane) -> bool:
        for table in TABLES:
            arguments = ("-w", str(LOCK_WAIT_S), "-t", table, "-C", CANARY, *CANARY_RULE.split())
            program = _PROGRAM[plane.family] + self._flavour
            # 1: no such rule or chain; some versions return 2 or 3 if the chain does not exist
            _, code = await self._programs.run_for_code(program, *arguments, codes=(0, 1, 2, 3))
            if code:
                return False
        return True

    async def differences(self, plane: IptablesPlane) -> tuple[str, ...]:
        saved = await self._saved(plane.family)
        return differences(
            rules_of(saved), parse_saved(saved), rules_of(plane.rules.shadow().render())
        )

    def disturbed(self) -> bool:
        return False  # only a listing would show it

    async def list_rules(self, family: Family) -> ListedRules:
        """Returns our rules and those of an earlier kube-proxy.  Raises ``IptablesError``."""
        return parse_saved(await self._saved(family))

    async def _saved(self, family: Family) -> str:
        return "".join([await self._run(family, "-save", "-t", table) for table in TABLES])

    async def admit(
        self, families: tuple[Family, ...], addresses: tuple[str, ...], port: int
    ) -> None:
        wait = ("-w", str(LOCK_WAIT_S), "-t", "nat")
        for family in families:
            await self._restore(family, iptables_redirection(family, addresses, port))
            program = _PROGRAM[family] + self._flavour
            _, missing = await self._programs.run_for_code(
                program, *wait, "-C", *JUMP, codes=(0, 1, 2, 3)
            )
            if addresses and missing:
                await self._run(family, "", *wait, "-I", *JUMP)
            elif not addresses:
                if not missing:
                    await self._run(family, "", *wait, "-D", *JUMP)
                await self._run(family, "", *wait, "-X", CHAIN)

    async def remove(self, families: tuple[Family, ...]) -> None:
        for family in families:
            text = removal(await self.list_rules(family))
            if text:
                await self._restore(family, text)
        await self.admit(families, (), 0)

    async def remove_leftovers(self, families: tuple[Family, ...]) -> None:
        """The chains have kube-proxy's names; they are ours if our canary is among them."""
        for family in families:
            if any(name == CANARY for _, name in (await self.list_rules(family)).chains):
                await self.remove((family,))

    async def _restore(self, family: Family, text: str, *options: str) -> None:
        extra_s = text.count("\n") * LINE_TIMEOUT_S
        await self._run(
            family,
            "-restore",
            "--noflush",
            "-w",
            str(LOCK_WAIT_S),
            *options,
            stdin=text,
            extra_s=extra_s,
        )

    async def _run(
        self, family: Family, suffix: str, *arguments: str, stdin: str = "", extra_s: float = 0.0
    ) -> str:
        program = _PROGRAM[family] + self._flavour + suffix
        return await self._programs.run(program, *arguments, stdin=stdin, extra_s=extra_s)


def _probe_text(family: Family) -> str:
    """Returns restore text with every match and target that the rules use."""
    chain = "SLICEPLANE-PROBE"
    rules = (
        f"-p tcp {set_recent(chain, family)} -j DNAT --to-destination {_ADDRESS[family]}",
        f"{comment('probe')} {match_recent(chain, family, 10)} -j RETURN",
        f"{one_in(2)} -j RETURN",
        "-m addrtype --dst-type LOCAL -j RETURN",
        "-m mark ! --mark 0x4000/0x4000 -j MARK --set-xmark 0x4000/0x4000",
        "-j MASQUERADE --random-fully",
    )
    lines = "".join(f"-A {chain} {rule}\n" for rule in rules)
    return f"*nat\n:{chain} - [0:0]\n{lines}COMMIT\n"
