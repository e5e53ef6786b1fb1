"""Node proxies for tests, built in one call."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from sliceplane.node.io.kernel.backend import AnyBackend
from sliceplane.node.io.metrics import ProxyRecord
from sliceplane.node.io.node_proxy import NodeProxy
from sliceplane.node.io.options import HostAccess, ProxyConfig


def make_proxy(
    node_name: str,
    backend: AnyBackend,
    *,
    record: ProxyRecord | None = None,
    clock: Callable[[], float] = time.time,
    **options: Any,
) -> NodeProxy:
    """Returns a proxy with these *options* of ``HostAccess`` and ``ProxyConfig``."""
    names = {"flows": "flows", "listen": "listen", "host_addresses": "addresses"}
    names["count_flows"] = "count_flows"
    access = {field: options.pop(name) for name, field in names.items() if name in options}
    config = ProxyConfig(node_name, **options)
    return NodeProxy(config, backend, HostAccess(**access), record=record, clock=clock)
