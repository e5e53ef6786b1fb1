"""Credentials of a server and its clients: certificates, tokens, the kubeconfig; renewed as long as
it runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from ipaddress import ip_address, ip_network
from typing import Final

from sliceplane.kit.io import interfaces
from sliceplane.kit.io.log import get_logger
from sliceplane.kit.io.start_error import StartError
from sliceplane.kit.io.tls.files import UseContext
from sliceplane.server.io.config import PlaneConfig
from sliceplane.server.io.connections.tls import ServerTls
from sliceplane.server.io.datadir import DataDir, write_private
from sliceplane.server.io.keys import pki
from sliceplane.server.io.keys.token_keys import TokenKeys
from sliceplane.server.io.requests.auth import Tokens

#: a node of a cluster may have thousands, of Services; a certificate must stay small
INTERFACE_ADDRESSES_MAX: Final = 128
#: a clock that is slewed, or a loop that is held up, moves less than this from one check to the
#: next
CLOCK_STEP_S_MIN: Final = 30.0

_log = get_logger("plane")


class Access:
    """Owned by the plane."""

    def __init__(
        self, config: PlaneConfig, data_dir: DataDir, url: str, clock: Callable[[], float]
    ) -> None:
        """Everything is on disk afterwards.  Raises ``StartError``."""
        self._config = config
        self._data_dir = data_dir
        self._url = url
        self._clock = clock
        self.pki = self._certificates()
        self.tls = ServerTls(self.pki, config.client_ca_file, config.front_proxies)
        write_private(data_dir.kubeconfig, pki.kubeconfig(self.pki, url))
        if config.token_auth_file is None:
            pki.ensure_tokens(data_dir.tokens)
        static = Tokens.load(config.token_auth_file or data_dir.tokens)
        self.tokens = TokenKeys(config.tokens, self.pki.token_key_file, static.find)

    def _certificates(self) -> pki.Pki:
        """Returns sound certificates; logs a warning if kubeconfigs that were handed out before are
        worth nothing now.
        """
        before = pki.Pki(self._data_dir.pki)
        identity = before.identity if before.ca_file.is_file() else ""
        handed_out = bool(identity) or self._data_dir.kubeconfig.exists()
        now, _ = pki.ensure(self._data_dir.pki, certificate_names(self._config), self._clock())
        if handed_out and now.identity != identity:
            _log.warning(
                "the certificate authority was missing or damaged: there is a new one, and copies "
                "of older kubeconfigs "
                "do not work any more",
                path=str(now.ca_file),
            )
        return now

    async def keep_certificates(self, use: UseContext, period_s: float) -> None:
        """Renew certificates that expire while the process runs, that are not valid at what the
        clock says now, or that lack a new address of this machine; open connections are not
        touched, unless they rest on an authority that was taken away. Runs as long as the server.
        """
        steady = asyncio.get_running_loop().time
        offset = self._clock() - steady()
        while True:
            await asyncio.sleep(period_s)
            now = self._clock()
            moved = now - steady() - offset
            offset = now - steady()
            if abs(moved) > CLOCK_STEP_S_MIN:
                _log.warning("the machine's clock was set", seconds=round(moved))
            try:
                await self._renew(use, now)
            except (
                Exception
            ) as error:  # tried again at the next check; the old ones last a month yet
                _log.error("cannot renew certificates", exc_info=error)

    async def _renew(self, use: UseContext, now: float) -> None:
        authority = self.pki.ca_file
        before = authority.read_text(encoding="ascii") if authority.exists() else ""
        # In a thread: to make one loads a library, which takes longer than the loop may be held up.
        self.pki, renewed = await asyncio.to_thread(
            pki.ensure, self._data_dir.pki, certificate_names(self._config), now
        )
        if renewed:
            distrusting = self.tls.renew(before)
            use(self.tls.context, distrusting=distrusting)
            write_private(self._data_dir.kubeconfig, pki.kubeconfig(self.pki, self._url))
            _log.info("certificates renewed")

    async def follow_authorities(self, use: UseContext, period_s: float) -> None:
        """Trusts the authorities that the files hold now: an authority that is taken out of one is
        a revocation of all that it signed. Runs as long as the server.
        """
        logged = ""
        while True:
            await asyncio.sleep(period_s)
            try:
                gone = self.tls.follow()
            except StartError as error:
                if str(error) != logged:
                    logged = str(error)
                    _log.error("what was trusted before still is", error=logged)
                continue
            logged = ""
            if gone is not None:
                use(self.tls.context, distrusting=gone)
                _log.info("the authorities of client certificates are others", some_are_gone=gone)


def certificate_names(config: PlaneConfig) -> tuple[str, ...]:
    """Returns the names that clients may dial, all of which the server certificate must have
    now.
    """
    addresses = [str(next(ip_network(cidr).hosts())) for cidr in config.service_cidrs]
    for address in (config.bind_address, config.advertise_address):
        if address and not ip_address(address).is_unspecified:
            addresses += [address]
    if config.on_every_interface:
        addresses += interfaces.addresses(ipv6=":" in config.bind_address)[:INTERFACE_ADDRESSES_MAX]
    return pki.server_names(tuple(addresses))
