"""What may go wrong with nftables, whichever way it is written."""

from __future__ import annotations

from sliceplane.shell.node.kernel.backend import KernelError

#: the empty chain that says whose table it is (``nft.layout.writer_chain``) is not there
TABLE_OF_ANOTHER = "our table was removed, or replaced by another process: a second node proxy?"


class NftError(KernelError):
    """``nft`` or the kernel could not do it."""
