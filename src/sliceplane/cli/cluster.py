"""The way of a command to an API server: which server, as which user, at what rate, and what
becomes of faults.
"""

from __future__ import annotations

import asyncio
import re
import sys
import traceback
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar

import click

from sliceplane.cli.answers import NO_ANSWER, fail, note, output_option, show
from sliceplane.cli.flags import FILE, duration, number, option, string, switch, with_options
from sliceplane.cli.object_names import names_of
from sliceplane.cli.options import Command
from sliceplane.kit.terminal_text import printable

if TYPE_CHECKING:
    from sliceplane.api.errors import StatusError
    from sliceplane.watch.io.connection import Connection
    from sliceplane.watch.io.http.client import HttpClient

#: requests a second; upstream's controllers have 20 and 30 each, here one process shares them
QPS_DEFAULT: Final = 50.0
BURST_DEFAULT: Final = 100
#: ... of a command that only reads: at most 20 in any second, also where a busy machine sends some
#: of them late
READING_QPS: Final = 12.0
READING_BURST: Final = 4
#: between two answers of a command with ``--watch``
WATCH_PERIOD_S: Final = 2.0

#: of what a server says of an error
SENTENCE_CHARACTERS_MAX: Final = 4096
#: where ``--request-timeout`` is kept, and whether the command works on what an API server sent
_TIMEOUT: Final = "sliceplane.request_timeout"
_FOREIGN: Final = "sliceplane.foreign"
#: the command is about all namespaces, and could be about one
_IS_WIDE: Final = "sliceplane.is_wide"
#: what code that expects valid objects raises for invalid ones
_CONFUSED: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)

_T = TypeVar("_T")

_CONNECTION: Final = (
    option(
        "--kubeconfig",
        "How to reach the API server.  [default: $KUBECONFIG, else a Pod's service account, else "
        "~/.kube/config, else the plane that 'sliceplane up' runs for this user]",
        type=FILE,
    ),
    string("--context", "NAME", "A context of the kubeconfig, not the current one.", None),
)


class TargetCluster(NamedTuple):
    """The API server that a command works with, by its options."""

    kubeconfig: Path | None
    context: str | None
    #: the option ``-n``; "": the kubeconfig's, or all of them
    namespace: str = ""
    #: the command sends one query, with a bound in time and bytes (``watch.io.bounds``)
    is_bounded: bool = True
    #: it only reads: at a lower rate, and a request that the server had no time for is retried
    only_reads: bool = True

    def connect(self) -> Connection:
        return connect(self.kubeconfig, self.context)

    def query(
        self,
        work: Callable[[HttpClient, str], Awaitable[_T]],
        *sentences: type[Exception],
        exit_code: int = NO_ANSWER,
    ) -> _T:
        """Returns what *work* makes of a client and a namespace: the option's, else the
        kubeconfig's.

        The client is closed afterwards. Faults end the command as in ``attempt``.
        """
        ctx = click.get_current_context(silent=True)
        meta = {} if ctx is None else ctx.meta
        meta[_FOREIGN] = True

        async def with_client(connection: Connection) -> _T:
            from sliceplane.kit.delays import TokenBucket
            from sliceplane.watch.io.bounds import QUESTION_TIMEOUT_S, question
            from sliceplane.watch.io.http.client import HttpClient
            from sliceplane.watch.io.http.replies import NO_RETRIES, Retries

            timeout_s = meta.get(_TIMEOUT, QUESTION_TIMEOUT_S)
            bounds = question(timeout_s) if self.is_bounded else nullcontext()
            qps, burst = (
                (READING_QPS, READING_BURST) if self.only_reads else (QPS_DEFAULT, BURST_DEFAULT)
            )
            limit = TokenBucket(rate_per_s=qps, burst=burst)
            retries = Retries() if self.only_reads else NO_RETRIES
            async with HttpClient(connection, limit=limit, retries=retries) as client, bounds:
                return await work(client, self.namespace or connection.namespace)

        return attempt(
            lambda: asyncio.run(with_client(self.connect())), *sentences, exit_code=exit_code
        )


def cluster_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--kubeconfig`` and ``--context`` of a command that runs on; it gets a ``cluster``."""

    @wraps(command)
    def with_cluster(
        *arguments: Any, kubeconfig: Path | None, context: str | None, **flags: Any
    ) -> Any:
        return command(*arguments, cluster=TargetCluster(kubeconfig, context), **flags)

    return with_options(*_CONNECTION)(with_cluster)


def _check_scope(ctx: click.Context, _: click.Parameter, everywhere: bool) -> bool:
    if everywhere and ctx.params.get("namespace"):
        raise click.UsageError("-n and -A exclude each other")
    return everywhere


def namespace_option(help_text: str = "[default: the kubeconfig's]") -> Callable[[Any], Any]:
    """``-n`` of a command whose objects are in one namespace."""
    return click.option(
        "-n",
        "--namespace",
        default="",
        metavar="NAME",
        is_eager=True,
        shell_complete=names_of("namespaces"),
        help=help_text,
    )


_SCOPES: Final = {
    "": (),
    "namespace": (namespace_option(),),
    "all": (
        namespace_option("Only its Services."),
        switch(
            "-A --all-namespaces",
            "All namespaces, which is the default.",
            expose_value=False,
            callback=_check_scope,
        ),
    ),
}

_watch_option = switch("--watch", "Go on, and show again what has changed; Ctrl-C ends it.")


def _note_timeout(ctx: click.Context, _: click.Parameter, seconds: float) -> float:
    ctx.meta[_TIMEOUT] = seconds or None
    return seconds


_timeout_option = duration(
    "--request-timeout",
    "Give up if all requests together are not answered after this time; 0: never.",
    "5m",
    expose_value=False,
    callback=_note_timeout,
)


def cluster_command(
    name: str,
    *,
    examples: Sequence[tuple[str, str]],
    parent: click.Group | None = None,
    short_help: str | None = None,
    scope: Literal["", "namespace", "all"] = "",
    watch: bool = False,
    output: bool = True,
    is_bounded: bool = True,
) -> Callable[[Callable[..., None]], click.Command]:
    """Makes a function a command that queries an API server. It gets a ``cluster``, unless *output*
    is false an ``output``, and with *watch* a ``watch``.

    *scope*: the option ``-n`` names one namespace, or chooses one of all. *is_bounded*: the command
    sends one query, which ``--request-timeout`` bounds.
    """
    output_options = (_watch_option,) * watch + (output_option,) * output
    connection_options = (*_CONNECTION, _timeout_option)[: 3 if is_bounded else 2]

    def decorate(function: Callable[..., None]) -> click.Command:
        @wraps(function)
        def with_cluster(
            *arguments: Any,
            kubeconfig: Path | None,
            context: str | None,
            namespace: str = "",
            **flags: Any,
        ) -> None:
            click.get_current_context().meta[_IS_WIDE] = scope == "all" and not namespace
            is_question = is_bounded and not flags.get("watch")
            cluster = TargetCluster(kubeconfig, context, namespace, is_question)
            function(*arguments, cluster=cluster, **flags)

        make = click.command if parent is None else parent.command
        command = make(name, cls=Command, examples=examples, short_help=short_help)(
            with_options(*_SCOPES[scope])(with_cluster)
        )
        for add_option in (
            *output_options,
            *connection_options,
        ):  # the help shows them after the command's own
            add_option(command)
        return command

    return decorate


rate_options = with_options(
    option(
        "--kube-api-qps",
        "Requests a second at most; 0 or less: no limit.",
        QPS_DEFAULT,
        type=float,
        metavar="N",
    ),
    number("--kube-api-burst", "Requests that may be saved up for a rush.", BURST_DEFAULT, least=1),
)


def connect(kubeconfig: Path | None, context: str | None, *, announce: bool = True) -> Connection:
    """Returns the API server of the two options. Without any kubeconfig it is the plane that runs
    from this user's data folder, and a note on stderr names it (*announce*). Raises ``KubeconfigError``.
    """
    from sliceplane.watch.io.kubeconfig import load_or_running

    def announce_plane(plane: Path) -> None:
        note(f"Note: no kubeconfig found; using the plane that runs here: {plane}")

    return load_or_running(
        kubeconfig, context=context, on_plane=announce_plane if announce else None
    )


def show_read(
    cluster: TargetCluster,
    read: Callable[[HttpClient], Awaitable[_T]],
    text: Callable[[_T], str],
    state: Callable[[_T], object],
    *,
    watch: bool,
) -> _T | None:
    """Shows the answer of *read*; with *watch*, again whenever its *state* changes. Returns the
    last answer.
    """

    async def work(client: HttpClient, _: str) -> _T | None:
        if watch:
            return await _watched(lambda: read(client), state, text)
        return await read(client)

    answer = cluster.query(work)
    if answer is not None and not watch:
        show(text(answer), exit_code=NO_ANSWER)
    return answer


async def _watched(
    read: Callable[[], Awaitable[_T]], state: Callable[[_T], object], text: Callable[[_T], str]
) -> _T | None:
    """Shows the answer of *read* again whenever its *state* changes, and on a terminal in the place
    of the one before. A server that is away for a while is reported, and asked again. Ends by
    Ctrl-C, with the last answer.
    """
    from sliceplane.api.errors import StatusError
    from sliceplane.watch.io.base import Unreachable
    from sliceplane.watch.io.bounds import question

    answer: _T | None = None
    last_state: object = None
    try:
        while True:
            try:
                async with question():
                    answer = await read()
                current, lines = state(answer), text(answer)
            except (Unreachable, StatusError) as error:
                current = lines = f"Error: {_sentence(error)}"
            if sys.stdout.isatty():
                click.clear()
                show(lines)
            elif current != last_state:
                show(lines)
            last_state = current
            await asyncio.sleep(WATCH_PERIOD_S)
    except asyncio.CancelledError:
        return answer


def attempt(work: Callable[[], _T], *sentences: type[Exception], exit_code: int = 1) -> _T:
    """Returns the result of *work*. On failure the command ends with *exit_code* and one line: for
    faults of the kubeconfig, the connection and the server, and for *sentences*, whose text is for
    users.
    """
    from sliceplane.api.codec import UNREADABLE
    from sliceplane.api.errors import StatusError
    from sliceplane.watch.io.base import Unreachable
    from sliceplane.watch.io.connection import KubeconfigError

    expected: tuple[type[Exception], ...] = (
        KubeconfigError,
        Unreachable,
        StatusError,
        *UNREADABLE,
        *sentences,
    )
    try:
        return work()
    except expected as error:
        if isinstance(error, StatusError) and error.code == 403:
            note_unread()
        fail(_sentence(error), exit_code)
    except KeyboardInterrupt:
        fail("interrupted", exit_code)  # not click's exit code, which may be an answer here
    except BaseExceptionGroup as errors:
        # Of several requests side by side one failed, and maybe others with it.
        failed = errors.subgroup(expected)
        if failed is None:
            raise
        fail(_sentence(_first(failed)), exit_code)


def end_confused(error: BaseException, ctx: click.Context) -> None:
    """Ends a command with a sentence if objects of an API server broke it with *error*.

    Servers refuse objects that are not valid, so most code reads them without a check; a stranger's
    server may send them all the same, and a traceback is no answer. Returns for other errors, and
    if the command asked no server.
    """
    if isinstance(error, BaseExceptionGroup):
        error = _first(error.subgroup(_CONFUSED) or error)
    if ctx.meta.get(_FOREIGN) and isinstance(error, _CONFUSED):
        fail(_confusion(error), NO_ANSWER)


def _confusion(error: BaseException) -> str:
    """Returns the message, with the source line: if the objects are valid, this program has a
    fault.
    """
    steps = traceback.extract_tb(error.__traceback__)
    source = f"{Path(steps[-1].filename).name}:{steps[-1].lineno}" if steps else "an unknown place"
    why = printable(str(error)[:SENTENCE_CHARACTERS_MAX])
    return (
        f"the server sent objects that no API server accepts: {type(error).__name__} at {source}: "
        f"{why}"
    )


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _sentence(error: BaseException) -> str:
    """One line of at most ``SENTENCE_CHARACTERS_MAX``, whatever the server said."""
    from sliceplane.api.codec import UNREADABLE
    from sliceplane.api.errors import StatusError

    text = str(error)
    if len(text) > SENTENCE_CHARACTERS_MAX:
        text = (
            f"{text[:SENTENCE_CHARACTERS_MAX]}... ({len(text) - SENTENCE_CHARACTERS_MAX:,} "
            "characters more)"
        )
    if isinstance(error, StatusError):
        return f"the server refuses: {printable(text)}{_grant(error)}"
    if isinstance(error, UNREADABLE):
        return f"the server sent an object that cannot be read: {printable(text)}"
    return text


#: upstream's authorizer: who cannot do what, and where
_REFUSED: Final = re.compile(
    r' cannot (\w+) (?:resource "([\w/]+)" in API group "([\w.]*)"|path "(/[\w/]*)")'
)


def _grant(error: StatusError) -> str:
    """Returns a clause with the command that grants the refused right; "" if it names none."""
    from sliceplane.api.findings.wording import grant_command

    refused = _REFUSED.search(error.message) if error.code == 403 else None
    if refused is None:
        return ""
    verb, resource, group, path = refused.groups()
    name = path or (f"{resource}.{group}" if group else resource)
    return f"; to grant it: {grant_command(verb, (name,))}"


def note_unread() -> None:
    """Prints a remark beside an answer that lacks the Services, if another option reads some."""
    ctx = click.get_current_context()
    if ctx.meta.get(_IS_WIDE):
        names: list[str] = []
        here: click.Context | None = ctx
        while here is not None and here.parent is not None:
            names.insert(0, here.info_name or "")
            here = here.parent
        command = " ".join(names)
        note(
            "Note: something could not be read; rights in one namespace are enough for the "
            f"Services there: 'sliceplane {command} -n NAMESPACE'"
        )


def limited_client(
    connection: Connection, flags: dict[str, Any], *, read_only: bool = False
) -> HttpClient:
    """A client that keeps to ``rate_options`` and sends again what a server had no time for."""
    from sliceplane.kit.delays import TokenBucket
    from sliceplane.watch.io.http.client import HttpClient
    from sliceplane.watch.io.http.replies import Retries

    qps = flags["kube_api_qps"]
    limit = TokenBucket(rate_per_s=qps, burst=flags["kube_api_burst"]) if qps > 0 else None
    manager = "sliceplane-controllers"
    return HttpClient(
        connection, field_manager=manager, limit=limit, retries=Retries(), read_only=read_only
    )
