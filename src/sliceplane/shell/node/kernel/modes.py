"""Which back end a mode means, and what is left when the mode changes.

Traffic shall not notice a change: the rules of the other mode go when ours are in place.  Its nftables table is
surely ours; chains of iptables may be a kube-proxy's, so they go only if they have our mark.
"""

from __future__ import annotations

from sliceplane.kit.ip import Family
from sliceplane.shell.node.kernel.backend import AnyBackend, KernelError, Mode
from sliceplane.shell.node.kernel.iptables_backend import Iptables
from sliceplane.shell.node.kernel.nft_backend import Nftables
from sliceplane.shell.node.kernel.nft_runner import NftRunner
from sliceplane.shell.process.log import get_logger

_log = get_logger("node-proxy")


def backend_of(mode: Mode, netns: str = "") -> AnyBackend:
    return Iptables(netns=netns) if mode == "iptables" else Nftables(NftRunner(netns=netns))


async def clean_up(mode: Mode, families: tuple[Family, ...], netns: str = "") -> None:
    """Takes away the rules of *mode*, and those that the other mode left.  Raises ``KernelError``."""
    await backend_of(mode, netns).remove(families)
    await remove_leftovers(mode, families, netns)


async def remove_leftovers(mode: Mode, families: tuple[Family, ...], netns: str = "") -> None:
    """Takes away what another mode than *mode* left.  It is a courtesy: what fails is told of, no more."""
    try:
        if mode == "iptables":
            await Nftables(NftRunner(netns=netns)).remove(families)
            return
        iptables = Iptables(netns=netns)
        await iptables.remove(tuple([family for family in families if await iptables.is_ours(family)]))
    except KernelError as error:
        if error.reason != "missing":  # without the program there is nothing that it could have written
            _log.warning("rules of another mode may be left", error=str(error))
