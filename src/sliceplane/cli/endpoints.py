"""``sliceplane endpoints``: the way out of the Endpoints API."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from sliceplane.cli.process import say
from sliceplane.cli.values import DurationType

if TYPE_CHECKING:
    from sliceplane.endpoints_audit.verdict import Report
    from sliceplane.shell.client.kubeconfig import Connection

#: exit codes
SAFE, NOT_SAFE, COULD_NOT_LOOK = 0, 1, 2


@click.group("endpoints")
def command() -> None:
    """Leave the Endpoints API: what still depends on it, and what is wrong with its objects."""


@command.command("audit")
@click.option("--kubeconfig", type=click.Path(dir_okay=False, path_type=Path), help="How to reach the API server.")
@click.option("--audit-log", "audit_logs", type=click.Path(dir_okay=False, path_type=Path), multiple=True,
    metavar="FILE", help="The server's audit log, to tell who reads; may be given several times.")  # fmt: skip
@click.option("--second-look", type=DurationType(), default="5s", show_default=True,
    help="When to look again at what may be a change on its way.")  # fmt: skip
@click.option("--output", type=click.Choice(("text", "json")), default="text", show_default=True)
def audit(*, kubeconfig: Path | None, audit_logs: tuple[Path, ...], second_look: float, output: str) -> None:
    """Who still writes and reads Endpoints, which objects are wrong, and whether their controller can go.

    Reads only (get and list of Services, Endpoints and EndpointSlices), on any cluster.  The last line is the
    verdict.  Exit code 0: safe; 1: not safe, the line says why; 2: could not look.
    """
    from sliceplane.api.errors import StatusError
    from sliceplane.shell.client.base import Unreachable
    from sliceplane.shell.client.kubeconfig import KubeconfigError, load

    try:
        found = asyncio.run(_audit(load(kubeconfig), audit_logs, second_look))
    except (KubeconfigError, Unreachable, _CannotLook) as error:
        _fail(str(error))
    except KeyboardInterrupt:
        _fail("interrupted")  # not click's exit code, which is 1: an answer here
    except StatusError as error:
        _fail(f"the server refuses: {error}")
    except BaseExceptionGroup as errors:
        # Of several requests side by side one failed, and maybe others with it.
        expected = errors.subgroup((StatusError, Unreachable))
        if expected is None:
            raise
        _fail(str(expected.exceptions[0]))
    say(_rendered(found, output))
    raise SystemExit(SAFE if found.safe else NOT_SAFE)


class _CannotLook(Exception):
    """A sentence."""


def _fail(sentence: str) -> NoReturn:
    click.echo(f"Error: {sentence}", err=True)
    raise SystemExit(COULD_NOT_LOOK)


def _rendered(found: Report, output: str) -> str:
    from sliceplane.endpoints_audit.text import as_text

    return json.dumps(found.as_document(), indent=2) if output == "json" else as_text(found)


async def _audit(connection: Connection, audit_logs: tuple[Path, ...], second_look_s: float) -> Report:
    from sliceplane.shell.client.http import HttpClient
    from sliceplane.shell.endpoints_audit import audit as look
    from sliceplane.shell.endpoints_audit import read_log

    log = None
    try:
        if audit_logs:
            log = await read_log(audit_logs)
    except OSError as error:
        raise _CannotLook(f"audit log {error.filename}: {error.strerror}") from error
    if log is not None and log.lines == log.unreadable:
        raise _CannotLook(f"audit log {audit_logs[0]}: none of its {log.lines:,} lines is an audit event")
    client = HttpClient(connection)
    try:
        return await look(client, log=log, second_look_s=second_look_s)
    finally:
        await client.close()
