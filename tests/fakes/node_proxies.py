"""Node proxies for tests, built in one call."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from sliceplane.node.io.kernel.backend import AnyBackend
from sliceplane.node.io.metrics import ProxyRecord
from sliceplane.node.io.node_proxy import NodeProxy
from sliceplane.node.io.options import FlowForgetter, HostAccess, ProxyConfig


def make_proxy(
    node_name: str,
    backend: AnyBackend,
    *,
    flows: FlowForgetter | None = None,
    record: ProxyRecord | None = None,
    clock: Callable[[], float] = time.time,
    **options: Any,
) -> NodeProxy:
    """Returns a proxy with these *options* of ``ProxyConfig``."""
    config = ProxyConfig(node_name, **options)
    return NodeProxy(config, backend, HostAccess(flows), record=record, clock=clock)
