"""The way of a command to an API server: which server, as which user, at what rate, and what becomes of faults."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from sliceplane.cli.answers import fail, note
from sliceplane.cli.options import with_options

if TYPE_CHECKING:
    from sliceplane.shell.transport.http import HttpClient
    from sliceplane.shell.transport.kubeconfig import Connection

#: requests a second; upstream's controllers have 20 and 30 each, here one process shares them
QPS_DEFAULT: Final = 50.0
BURST_DEFAULT: Final = 100

_T = TypeVar("_T")

cluster_options = with_options(
    click.option("--kubeconfig", type=click.Path(dir_okay=False, path_type=Path),
        help="How to reach the API server.  [default: $KUBECONFIG, else a Pod's service account, else "
        "~/.kube/config, else the plane that 'sliceplane up' runs for this user]"),
    click.option("--context", default=None, metavar="NAME", help="A context of the kubeconfig, not the current one."),
)  # fmt: skip

rate_options = with_options(
    click.option("--kube-api-qps", type=float, default=QPS_DEFAULT, show_default=True, metavar="N",
        help="Requests a second at most; 0 or less: no limit."),
    click.option("--kube-api-burst", type=click.IntRange(min=1), default=BURST_DEFAULT, show_default=True,
        metavar="N", help="Requests that may be saved up for a rush."),
)  # fmt: skip


def connect(kubeconfig: Path | None, context: str | None) -> Connection:
    """The API server of ``cluster_options``.  Where there is no kubeconfig at all, it is the plane that runs from this
    user's data folder, and stderr says so.  Raises ``KubeconfigError``."""
    from sliceplane.shell.server.datadir import running_plane
    from sliceplane.shell.transport.kubeconfig import NoKubeconfig, from_file, load

    try:
        return load(kubeconfig, context=context)
    except NoKubeconfig as error:
        plane = running_plane()
        if plane is None:
            raise NoKubeconfig(f"{error}; nor does 'sliceplane up' run from this user's data folder") from error
        note(f"Note: no kubeconfig is there; this is the plane that runs here: {plane}")
        return from_file(plane, context=context)


def ask(
    kubeconfig: Path | None,
    context: str | None,
    work: Callable[[HttpClient, str], Awaitable[_T]],
    *sentences: type[Exception],
    exit_code: int = 1,
) -> _T:
    """What *work* makes of a client of the API server of ``cluster_options``, and of the kubeconfig's namespace.

    The client is closed afterwards.  Faults end the command as in ``attempt``.
    """

    async def with_client(connection: Connection) -> _T:
        from sliceplane.shell.transport.http import HttpClient

        async with HttpClient(connection) as client:
            return await work(client, connection.namespace)

    return attempt(lambda: asyncio.run(with_client(connect(kubeconfig, context))), *sentences, exit_code=exit_code)


def attempt(work: Callable[[], _T], *sentences: type[Exception], exit_code: int = 1) -> _T:
    """What *work* gives.  Where it fails, the command ends with *exit_code* and one line: for faults of the kubeconfig,
    the way there and the server, and for *sentences*, whose text is for people."""
    from msgspec import DecodeError

    from sliceplane.api.errors import StatusError
    from sliceplane.shell.transport.base import Unreachable
    from sliceplane.shell.transport.kubeconfig import KubeconfigError

    expected: tuple[type[Exception], ...] = (KubeconfigError, Unreachable, StatusError, DecodeError, *sentences)
    try:
        return work()
    except expected as error:
        fail(_sentence(error), exit_code)
    except KeyboardInterrupt:
        fail("interrupted", exit_code)  # not click's exit code, which may be an answer here
    except BaseExceptionGroup as errors:
        # Of several requests side by side one failed, and maybe others with it.
        failed = errors.subgroup(expected)
        if failed is None:
            raise
        fail(_sentence(failed.exceptions[0]), exit_code)


def _sentence(error: BaseException) -> str:
    from msgspec import DecodeError

    from sliceplane.api.errors import StatusError

    if isinstance(error, StatusError):
        return f"the server refuses: {error}"
    if isinstance(error, DecodeError):
        return f"the server sent an object that cannot be read: {error}"
    return str(error)


def limited_client(connection: Connection, flags: dict[str, Any], *, read_only: bool = False) -> HttpClient:
    """A client that keeps to ``rate_options`` and sends again what a server had no time for."""
    from sliceplane.kit.delays import TokenBucket
    from sliceplane.shell.transport.http import HttpClient
    from sliceplane.shell.transport.replies import Retries

    qps = flags["kube_api_qps"]
    limit = TokenBucket(rate_per_s=qps, burst=flags["kube_api_burst"]) if qps > 0 else None
    manager = "sliceplane-controllers"
    return HttpClient(connection, field_manager=manager, limit=limit, retries=Retries(), read_only=read_only)
