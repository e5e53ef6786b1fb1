"""Who wrote the field that shows a fault: its manager, and the user where our server remembers the
write.
"""

from __future__ import annotations

import msgspec
from tests.diagnose.explain.world import NOW, World, healthy

from sliceplane.diagnose.explain.investigation import Investigation
from sliceplane.diagnose.explain.question import ExplainQuestion

#: helm wrote the Service an hour ago (``tests.diagnose.explain.world``)
HELM = NOW - 3600


def writer_of(world: World, *noted: tuple[float, str, str]) -> str:
    """The writer of the selector, which matches nothing, as the answer has it."""
    world.get("Service", "shop", "cart")["spec"]["selector"] = {"app": "catr"}
    investigation = Investigation(ExplainQuestion("service", "cart", "shop"), NOW)
    while wanted := investigation.pending_reads():
        for selection in wanted:
            investigation.on_list(
                selection, investigation.decoded(selection, world.list(selection))
            )
    page = [
        {"time": time, "user": user, "verb": "update", "agent": agent}
        for time, user, agent in noted
    ]
    for name in investigation.named_objects():
        investigation.on_noted(
            name, msgspec.json.encode(page) if name.kind == "Service" else b"<html>"
        )
    return investigation.answer().findings[0].evidence[0].writer


def test_the_user_of_that_very_write_is_told_with_the_program() -> None:
    assert (
        writer_of(healthy(), (HELM - 60, "eve", "helm/3"), (HELM + 0.4, "alice", "helm/3"))
        == "alice (helm)"
    )


def test_of_two_in_a_second_it_is_the_one_with_the_program() -> None:
    assert (
        writer_of(healthy(), (HELM + 0.5, "alice", "helm/3"), (HELM + 0.4, "bob", "kubectl/1"))
        == "alice (helm)"
    )


def test_writes_of_another_time_say_nothing_of_this_field() -> None:
    assert (
        writer_of(healthy(), (HELM - 60, "eve", "helm/3"), (NOW - 5, "bob", "kubectl/1")) == "helm"
    )


def test_a_server_that_remembers_nothing_leaves_the_manager() -> None:
    assert writer_of(healthy()) == "helm"
