"""The HTTP proxy for a server, from a kubeconfig or the environment, and its credentials."""

from __future__ import annotations

import base64
import ipaddress
import os
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

SCHEMES = ("http", "https")


class ProxyError(Exception):
    """The proxy cannot be used; a sentence for a person."""


def configured(url: str) -> str:
    """``proxy-url`` of a kubeconfig, if it can be used.  Raises ``ProxyError``."""
    if not is_usable(url):
        raise ProxyError(f"proxy-url {url!r} must be an http or https URL")
    return url


def is_usable(url: str) -> bool:
    """Returns True if *url* names a host, and a port if any, of HTTP or HTTPS."""
    try:
        parts = urlsplit(url)
        is_host = bool(parts.hostname) and not parts.netloc.endswith(":")
        return (
            parts.scheme in SCHEMES
            and is_host
            and parts.port != 0
            and url.isprintable()
            and " " not in url
        )
    except ValueError:
        return False


def from_environment(server: str, environment: Mapping[str, str] = os.environ) -> str:
    """The proxy for *server* by HTTP_PROXY, HTTPS_PROXY and NO_PROXY; "" for none.  Never for this
    machine itself.
    """
    parts = urlsplit(server)
    name = f"{parts.scheme}_proxy"
    url = environment.get(name.upper()) or environment.get(name) or ""
    host = parts.hostname or ""
    without = environment.get("NO_PROXY") or environment.get("no_proxy") or ""
    if (
        not url
        or _local(host)
        or _excluded(host, parts.port or (443 if parts.scheme == "https" else 80), without)
    ):
        return ""
    return url if "://" in url else f"http://{url}"


def _local(host: str) -> bool:
    address = _address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _excluded(host: str, port: int, without: str) -> bool:
    address = _address(host)
    for part in (text.strip().lower() for text in without.split(",")):
        if part == "*":
            return True
        if not part:
            continue
        if "/" in part:
            try:
                network = ipaddress.ip_network(part, strict=False)
            except ValueError:
                continue
            if address is not None and address.version == network.version and address in network:
                return True
            continue
        name, colon, number = part.rpartition(":")
        if colon and number.isdecimal() and name.count(":") != 1 and _address(part) is None:
            if int(number) != port:
                continue
            part = name.strip("[]")
        if host == part.lstrip("*").removeprefix(".") or (
            address is None and host.endswith(f".{part.lstrip('*.')}")
        ):
            return True
    return False


def authorization(proxy: str) -> list[tuple[str, str]]:
    """The header for a *proxy* whose URL has a name and a password."""
    parts = urlsplit(proxy)
    if parts.username is None:
        return []
    user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return [("Proxy-Authorization", f"Basic {base64.b64encode(user.encode()).decode()}")]
