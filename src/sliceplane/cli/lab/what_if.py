"""``sliceplane what-if``: what would a change do to a Service, its watchers and its zones."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sliceplane.cli.answers import BAD, GOOD, NO_ANSWER, Output, note
from sliceplane.cli.cluster import TargetCluster, attempt, cluster_command
from sliceplane.cli.flags import FILE, number, option, string
from sliceplane.cli.values import ParsedType

if TYPE_CHECKING:
    from sliceplane.api.core import Service
    from sliceplane.api.requests import Selection
    from sliceplane.api.resource import Resource
    from sliceplane.lab.whatif.changes import Setting
    from sliceplane.lab.whatif.picture import Clients
    from sliceplane.lab.whatif.prediction import Prediction, Price
    from sliceplane.lab.whatif.state import ClusterState
    from sliceplane.watch.io.http.client import HttpClient

_FILE = click.Path(dir_okay=False, path_type=Path)
PRICE_DEFAULT = "0.02@2026-11"
#: the word before the Service in place of a change
MEASURED = "measured"


def _change(text: str) -> Setting:
    from sliceplane.lab.whatif.changes import KEYS, parse

    return parse(text, KEYS)


def _setting_of_now(text: str) -> Setting:
    from sliceplane.lab.whatif.changes import NOW_KEYS, parse

    return parse(text, NOW_KEYS)


def _one_or_two(_: click.Context, __: click.Parameter, what: tuple[str, ...]) -> tuple[str, ...]:
    if len(what) > 2 or (len(what) == 2 and what[0] != MEASURED):
        raise click.BadParameter(f"{' '.join(what)!r} is not one Service")
    return what


@cluster_command(
    "what-if",
    scope="namespace",
    examples=[
        (
            "clients that keep to their zone",
            "sliceplane what-if cart -n shop --set traffic-distribution=PreferSameZone",
        ),
        (
            "a zone that is lost, from a copy",
            "sliceplane what-if shop/cart --snapshot FILE --set zone-lost=zone-b",
        ),
        (
            "is there room for it",
            "sliceplane what-if shop/cart --set zone-lost=zone-b --rate 3000 --capacity 400",
        ),
        (
            "hints by the zones in which connections start",
            "sliceplane what-if measured shop/cart",
        ),
        (
            "a rollout, and where the picture of it is",
            "sliceplane what-if shop/cart --set rollout=yes --plot cart.svg",
        ),
    ],
)
@click.argument(
    "what", nargs=-1, required=True, metavar="[measured] [NAMESPACE/]SERVICE", callback=_one_or_two
)
@option(
    "--set changes",
    "What is changed; may be given several times.  zone-lost=ZONE, "
    "zone-added=ZONE[:NODES], node-zone=NODE:[ZONE], replicas=[WORKLOAD:]N, "
    "rollout=yes|WORKLOAD with max-surge=N|N% and max-unavailable=N|N%, "
    "traffic-distribution=VALUE|none, topology-mode=Auto|none, "
    "max-endpoints-per-slice=N, subsetting=off|APPROACH, defragment=yes|no, "
    "ready-delay=DURATION, termination=DURATION, batch-period=DURATION, "
    "node-grace=DURATION.",
    type=ParsedType("KEY=VALUE", _change),
    multiple=True,
)
@option(
    "--now now",
    "How the controllers run now, where not by default: max-endpoints-per-slice, "
    "subsetting, defragment, batch-period, ready-delay, termination, node-grace.",
    type=ParsedType("KEY=VALUE", _setting_of_now),
    multiple=True,
)
@option(
    "--snapshot", "A file of 'sliceplane snapshot save' in place of a cluster that runs.", type=FILE
)
@string(
    "--clients selector",
    "SELECTOR",
    "Clients are where the Pods with these labels are.  [default: where Nodes take Pods]",
)
@string(
    "--traffic --weights traffic",
    "ZONE=SHARE,...|@FILE",
    "Clients by zone, as measured; in a file (@- is stdin) as Prometheus answers a "
    "query or as a page of metrics has it: series with a label zone.",
)
@string("--rate", "N", "Requests a second to the Service, of all clients.")
@string(
    "--capacity",
    "N",
    "Requests a second that one Pod can take: with --rate, overload is what is more than that.",
)
@number(
    "--connections",
    "How many there are at a time: what chance makes of them is told.",
    10_000,
    least=1,
)
@number("--watchers", "Clients that watch all slices, beside the Nodes' proxies.", 0, least=0)
@string("--gigabytes", "N", "Measured, requests and answers: makes a cost of shares.", "0")
@string(
    "--price",
    "AMOUNT@DATE",
    "$ for a GB that crosses zones, both directions; the default is AWS's.",
    PRICE_DEFAULT,
)
@option(
    "--verify",
    "Compare with what a recording says that happened after the snapshot.",
    type=FILE,
    metavar="RECORDING",
)
@option("--plot", "Also draw it into FILE (.png, .svg or .pdf; needs matplotlib).", type=FILE)
def command(
    *,
    cluster: TargetCluster,
    what: tuple[str, ...],
    output: Output,
    plot: Path | None,
    verify: Path | None,
    **flags: Any,
) -> None:
    """Predicts the effects of a change on a Service: writes, slices, bytes to every watcher, and
    the destinations of connections.

    Runs the controllers of this version on virtual time, over the present state of a cluster or
    over a snapshot, and makes the change there. Read-only; the output begins with its assumptions.

    'what-if measured SERVICE' compares the hints of now with those of sliceplane.dev/Measured,
    PreferSameZone and sliceplane.dev/Balanced. Connections by zone are those that nodes report,
    for 40 s, or those of --weights.

    Exit code 0: nothing gets worse; 1: the change overloads an endpoint, or leaves connections
    without one; with --verify: the prediction differs from the recording; 2: no answer, stderr has
    the reason.
    """
    service = what[-1]
    if len(what) == 2:
        from sliceplane.cli.lab.what_if_measured import show_measured

        show_measured(cluster, service, output, flags["snapshot"], _clients(flags))
    from sliceplane.cli.progress import ProgressLine
    from sliceplane.cli.query.recorder import making_sense, read
    from sliceplane.lab.whatif.changes import checked, running
    from sliceplane.lab.whatif.document import as_document
    from sliceplane.lab.whatif.prediction import WhatIfQuestion, predict
    from sliceplane.lab.whatif.state import WhatIfError
    from sliceplane.lab.whatif.text import as_text
    from sliceplane.lab.whatif.verify import WhatIfOutcome, compared, is_as_predicted, read_outcome

    if verify is not None and flags["snapshot"] is None:
        raise click.UsageError("--verify compares with a snapshot of before: add --snapshot FILE")
    clients = _clients(flags)
    price = price_of(flags)

    def work() -> tuple[Prediction, WhatIfOutcome | None]:
        state, subject = read_service(cluster, service, flags["snapshot"], clients.selector)
        changes = checked(flags["changes"], state, subject)
        question = WhatIfQuestion(
            service=subject,
            changes=changes,
            now=running(flags["now"]),
            clients=clients,
            price=price,
            watchers=flags["watchers"],
        )
        with ProgressLine() as report_progress:
            prediction = predict(state, question, report_progress)
        if verify is None:
            return prediction, None
        recording = read(verify)
        with making_sense(verify):
            return prediction, read_outcome(prediction, state, recording)

    prediction, real = attempt(work, WhatIfError, exit_code=NO_ANSWER)
    if plot is not None:
        from sliceplane.cli.lab.what_if_plot import write_plot

        write_plot(prediction, plot)
    output.show(
        lambda: as_document(prediction, real), lambda width: as_text(prediction, width, real)
    )
    if plot is not None:
        note(f"picture: {plot}")
    bad = prediction.is_worse if real is None else not is_as_predicted(compared(prediction, real))
    raise SystemExit(BAD if bad else GOOD)


def read_service(
    cluster: TargetCluster,
    service: str,
    snapshot: Path | None,
    clients: str = "",
    resources: Sequence[Resource] = (),
) -> tuple[ClusterState, Service]:
    """Returns the cluster, and the Service with that name in it. *resources*: as ``read_cluster``."""
    in_name, _, name = service.rpartition("/")
    of_name = cluster._replace(namespace=in_name or cluster.namespace)
    state, namespace = _state(of_name, snapshot, clients, resources)
    return state, state.service(of_name.namespace or namespace, name)


def _state(
    cluster: TargetCluster, path: Path | None, clients: str, resources: Sequence[Resource]
) -> tuple[ClusterState, str]:
    """Returns the cluster, and the namespace of names without one."""
    from functools import partial

    from sliceplane.kit.io.files import opened_lines
    from sliceplane.lab.whatif.state import WhatIfError, of_snapshot
    from sliceplane.server.store.snapshot import LINE_BYTES_MAX

    if path is None:
        return cluster.query(
            partial(read_cluster, clients=clients, resources=resources), WhatIfError
        )
    try:
        with opened_lines(path, line_bytes_max=LINE_BYTES_MAX) as lines:
            return of_snapshot(lines, path.name, path.stat().st_mtime), "default"
    except OSError as error:
        raise WhatIfError(
            f"cannot read {path}: {(error.strerror or str(error)).lower()}"
        ) from error


async def read_cluster(
    client: HttpClient, namespace: str, clients: str = "", resources: Sequence[Resource] = ()
) -> tuple[ClusterState, str]:
    """Reads what bears on the Services of *namespace*: its objects, all Nodes, and the Pods with
    the labels *clients* of all namespaces. Of the Namespace only the name counts, which is known.
    *resources*: only these.
    """
    import asyncio
    import time

    from sliceplane.api.codec import encode
    from sliceplane.api.requests import Selection
    from sliceplane.api.scheme import Namespaces, Pods
    from sliceplane.lab.whatif.state import READ, of_lists

    selections = [
        Selection(resource, namespace if resource.namespaced else "")
        for resource in resources or READ
        if resource is not Namespaces
    ]
    if clients:
        selections.append(Selection(Pods, label_selector=clients))
    listed = await asyncio.gather(*(_listed(client, selection) for selection in selections))
    named = encode({"metadata": {"name": namespace, "uid": namespace}})
    bodies: dict[Resource, dict[bytes, None]] = {Namespaces: {named: None}}
    for selection, items in zip(selections, listed, strict=True):
        bodies.setdefault(selection.resource, {}).update(dict.fromkeys(items))
    page = await client.list(selections[0], limit=1)
    revision = int(page.resource_version) if page.resource_version.isdecimal() else 0
    lists = {resource: tuple(items) for resource, items in bodies.items()}
    return of_lists(lists, revision, "as the cluster is now", time.time()), namespace


async def _listed(client: HttpClient, selection: Selection) -> list[bytes]:
    from sliceplane.api.errors import StatusError
    from sliceplane.api.findings.wording import grant_command
    from sliceplane.diagnose.explain.facts import Unread
    from sliceplane.diagnose.io.lists import list_whole
    from sliceplane.lab.whatif.state import READ, WhatIfError

    try:
        return await list_whole(client, selection)
    except StatusError as error:
        if error.code not in (401, 403):
            raise
        needed = ", ".join(item.plural for item in READ)
        command = grant_command("list", (selection.resource.key,))
        raise WhatIfError(
            f"the right to {Unread(selection, 'list', '').right} is missing; {needed} are read; "
            f"to grant it: {command}.  With a file of 'sliceplane snapshot save' from somebody "
            "who may: --snapshot FILE"
        ) from error


def _clients(flags: dict[str, Any]) -> Clients:
    from sliceplane.api.errors import StatusError
    from sliceplane.api.selectors.grammar import parse_labels
    from sliceplane.lab.whatif.picture import Clients

    if flags["selector"] and flags["traffic"]:
        raise click.UsageError("--clients and --traffic both say where clients are: leave one out")
    try:
        parse_labels(flags["selector"])
    except StatusError as error:
        raise click.BadParameter(str(error), param_hint="'--clients'") from error
    return Clients(
        selector=flags["selector"],
        traffic=_traffic(flags["traffic"]),
        connections=flags["connections"],
        rate=_requests(flags, "rate"),
        capacity=_requests(flags, "capacity"),
    )


def _requests(flags: dict[str, Any], name: str) -> Fraction | None:
    if name == "capacity" and flags[name] and not flags["rate"]:
        raise click.UsageError("--capacity is compared with what Pods get: add --rate")
    if not flags[name]:
        return None
    amount = _amount(flags[name], f"'--{name}'")
    if not amount:
        raise click.BadParameter("0 requests a second say nothing", param_hint=f"'--{name}'")
    return amount


def _traffic(text: str) -> dict[str, Fraction]:
    if text.startswith("@"):
        return _measured(text[1:])
    traffic: dict[str, Fraction] = {}
    for part in filter(None, text.split(",")):
        zone, equals, share = part.strip().partition("=")
        traffic[zone] = _amount(share, "'--traffic'") if equals and zone else Fraction(-1)
        if traffic[zone] < 0:
            raise click.BadParameter(
                f"{part!r} is not ZONE=SHARE; a file is @FILE", param_hint="'--traffic'"
            )
    if text and not sum(traffic.values()):
        raise click.BadParameter("no zone has a share", param_hint="'--traffic'")
    return traffic


def _measured(name: str) -> dict[str, Fraction]:
    from sliceplane.kit.io.files import read_text
    from sliceplane.lab.whatif.traffic import BadTraffic, zones_of

    try:
        return zones_of(read_text(Path(name)))
    except OSError as error:
        raise click.BadParameter(
            f"cannot read {name}: {(error.strerror or str(error)).lower()}"
        ) from error
    except (BadTraffic, RecursionError) as error:
        raise click.BadParameter(f"{name}: {error}", param_hint="'--traffic'") from error


def _amount(text: str, hint: str) -> Fraction:
    try:
        amount = Fraction(text)
    except (ValueError, ZeroDivisionError):
        amount = Fraction(-1)
    if amount < 0:
        raise click.BadParameter(f"{text!r} is no amount", param_hint=hint)
    return amount


def price_of(flags: dict[str, Any]) -> Price:
    from sliceplane.lab.whatif.prediction import Price

    amount, at, date = flags["price"].partition("@")
    if not at or not date:
        raise click.BadParameter("say of when the price is: 0.02@2026-11", param_hint="'--price'")
    of = f"AWS, {date}" if flags["price"] == PRICE_DEFAULT else date
    return Price(
        per_gb=_amount(amount, "'--price'"),
        of=of,
        gigabytes=_amount(flags["gigabytes"], "'--gigabytes'"),
    )
