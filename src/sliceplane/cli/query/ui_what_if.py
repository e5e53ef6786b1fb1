"""``sliceplane what-if`` for the page: the command's own answer, as a document."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sliceplane.lab.whatif.prediction import Prediction
    from sliceplane.watch.io.http.client import HttpClient

#: the engine computes while other questions of the page wait: endpoints that there are or would be,
#: and objects
ENDPOINTS_MAX: Final = 500
OBJECTS_MAX: Final = 10_000
#: of the curve of bytes
POINTS_MAX: Final = 120


async def predict_service(
    client: HttpClient, namespace: str, name: str, settings: Sequence[str]
) -> Any:
    """Raises ``Unanswerable`` with a sentence, and what the way to the cluster raises."""
    from sliceplane.cli.lab.what_if import PRICE_DEFAULT, price_of, read_cluster
    from sliceplane.diagnose.trace.question import Unanswerable
    from sliceplane.lab.whatif.changes import KEYS, Running, checked, parse
    from sliceplane.lab.whatif.document import as_document
    from sliceplane.lab.whatif.picture import Clients
    from sliceplane.lab.whatif.prediction import WhatIfQuestion, predict
    from sliceplane.lab.whatif.state import WhatIfError
    from sliceplane.lab.whatif.text import judgement

    try:
        parsed = tuple(parse(text, KEYS) for text in settings)
        state, _ = await read_cluster(client, namespace)
        _refuse_more("object", len(state.records), OBJECTS_MAX)
        service = state.service(namespace, name)
        changes = checked(parsed, state, service)
        endpoints = sum(len(item.endpoints or ()) for _, item in state.slices(namespace, name))
        _refuse_more(
            "endpoint",
            max(endpoints, sum(replicas for _, replicas in changes.replicas)),
            ENDPOINTS_MAX,
        )
        price = price_of({"price": PRICE_DEFAULT, "gigabytes": "0"})
        question = WhatIfQuestion(
            service=service, changes=changes, now=Running(), clients=Clients(), price=price
        )
        prediction = predict(state, question)
    except (WhatIfError, ValueError) as error:
        raise Unanswerable(str(error)) from error
    return {
        **as_document(prediction),
        "bad": prediction.is_worse,
        "judgement": list(judgement(prediction)),
        "sent": _sent(prediction),
    }


def _refuse_more(what: str, number: int, most: int) -> None:
    from sliceplane.diagnose.trace.question import Unanswerable

    if number > most:
        raise Unanswerable(
            f"{number:,} {what}s are more than the {most:,} that the page works out: the command "
            "does"
        )


def _sent(prediction: Prediction) -> list[tuple[float, int, int]]:
    """Seconds after the change, and the bytes until then as JSON and as protobuf; the last is the
    end.
    """
    events = prediction.events
    sums = list(
        zip(
            [round(event.at - prediction.began, 3) for event in events],
            accumulate(event.json for event in events),
            accumulate(event.protobuf for event in events),
            strict=True,
        )
    )
    step = -(-len(sums) // POINTS_MAX) or 1
    return sums[:-1:step] + sums[-1:]
