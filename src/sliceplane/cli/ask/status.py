"""``sliceplane status``: the cluster on one screen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from sliceplane.cli.answers import (
    BAD,
    GOOD,
    NO_ANSWER,
    Form,
    output_option,
    rendered,
    screen_width,
    show,
)
from sliceplane.cli.cluster import ask, question_options, scope_options, watch_option, watched
from sliceplane.cli.options import Command

if TYPE_CHECKING:
    from sliceplane.diagnose.explain.status import PlaneStatus
    from sliceplane.watch.io.http import HttpClient

_EXIT_CODES = {"well": GOOD, "attention": BAD, "unknown": NO_ANSWER}


@click.command(
    "status",
    cls=Command,
    examples=[
        ("is anything wrong at all?", "sliceplane status"),
        ("one namespace, for a program", "sliceplane status -n shop -o json"),
        ("while something is rolled out", "sliceplane status --watch"),
    ],
)
@scope_options
@watch_option
@output_option
@question_options
def command(*, namespace: str, watch: bool, output: Form, **flags: Any) -> None:
    """The cluster on one screen: servers, storage, controllers, queues, nodes, watches, and what
    needs attention.

    A part that is marked '!' needs attention, one marked '?' could not be looked at. Then come the
    worst findings of 'sliceplane lint', at most five. Reads only, on any cluster, with the rights
    that one has; of a server that is not ours some parts cannot be seen.

    Exit code 0: all is well; 1: something needs attention; 2: cannot tell (something could not be
    read, or is too young to judge), the output or stderr says why.
    """

    import time

    from sliceplane.diagnose.explain.text import status_as_text
    from sliceplane.diagnose.io.status import read_status

    def text(status: PlaneStatus) -> str:
        return rendered(output, status.as_document, lambda: status_as_text(status, screen_width()))

    async def work(client: HttpClient, _: str) -> PlaneStatus | None:
        async def read() -> PlaneStatus:
            return await read_status(client, namespace, time.time)

        if watch:
            return await watched(read, text, text)
        return await read()

    status = ask(flags["kubeconfig"], flags["context"], work, exit_code=NO_ANSWER, once=not watch)
    if status is None:
        raise SystemExit(NO_ANSWER)
    if not watch:
        show(text(status), exit_code=NO_ANSWER)
    raise SystemExit(_EXIT_CODES[status.state])
