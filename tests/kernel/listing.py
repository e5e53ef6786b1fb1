"""``node.nft.listing`` of a host's kernel."""

from __future__ import annotations

from tests.kernel.netns import Host

from sliceplane.node.nft import listing
from sliceplane.node.nft.listing import Form, expected
from sliceplane.node.nft.objects import TableRef

__all__ = ["expected", "listed"]


def listed(host: Host, ref: TableRef) -> Form:
    """What the kernel of *host* holds."""
    return listing.listed(host.exec(["nft", "-j", "list", "table", ref.family, ref.name]).stdout)
