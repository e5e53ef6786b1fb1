"""Whom the page at a server lets in, in a real Chromium, and what a phone shows first."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.ui.browser import AXE, Tab, violations
from tests.ui.cluster import PlaneWithPage, RunningPage, deployment, reader_of, service

from sliceplane.testing import Plane

pytestmark = pytest.mark.timeout(300)


def test_what_is_wrong_comes_first_where_it_is_narrow(tab: Tab) -> None:
    """At 320 pixels the list of Services showed no finding at all, and one Service its error below
    three boxes.
    """
    with Plane(nodes=2, zones=("zone-a", "zone-b")) as plane:
        alike = [service(f"lost-{number}", selector={"app": "none"}) for number in range(3)]
        many = [service(f"fine-{number:02}", selector={"app": "web"}) for number in range(20)]
        plane.apply([deployment("web", 2), *alike, *many])
        plane.wait_for(
            lambda: [e.ready for e in plane.endpoints("fine-00")] == [True, True], timeout=60
        )
        with RunningPage(plane) as page:
            tab.resize(320, 640)
            tab.go(page.url)
            tab.until("document.querySelectorAll('#main .findings .finding.error').length > 0")
            tab.shows(
                "2 emulated nodes: no proxy and no kernel", "section[aria-labelledby=h-fresh]"
            )
            assert "in step" not in tab.text("main")
            attention = "document.querySelector('section[aria-labelledby=h-attention]')"
            row = f"{attention}.querySelector('.findings > .finding:first-child')"
            assert tab.eval(f"{attention}.getBoundingClientRect().top") < 200
            tab.until(f"{row}.innerText.includes('and 2 more')")  # one sentence, one row
            tab.eval(f"{row}.querySelector('summary').click()")
            named = f"[...{row}.querySelectorAll('a')].map((link) => link.innerText.split('/')[1])"
            assert sorted(set(tab.eval(named))) == ["lost-0", "lost-1", "lost-2"]
            notes = f"{attention}.querySelector('details.notes')"
            assert tab.eval(f"!{notes}.open && {notes}.querySelector('.finding.note') !== null"), (
                "notes are folded"
            )
            beside = f"[...{attention}.querySelectorAll(':scope > .findings .finding.note .mark')]"
            assert tab.eval(f"{beside}.every((mark) => mark.innerText.includes('young'))"), (
                "all but young ones"
            )
            rows = (
                "[...document.querySelectorAll('#services .rows [role=row]')].map((row) => "
                "row.innerText)"
            )
            tab.eval("location.hash = '#/services'")
            tab.until(
                f"{rows}.slice(0, 3).every((row) => /lost-[^]*B1/.test(row)) && "
                f"{rows}[3].includes('fine')"
            )
            cut = "(document.getElementById('services').clientHeight - 29) % 28"
            assert tab.eval("document.getElementById('services').scrollHeight") > 640, (
                "the table has to be scrolled"
            )
            assert tab.eval(cut) == 0, "no row is cut in half"
            tab.eval("location.hash = '#/service/default/lost-0'")
            tab.shows("Do the EndpointSlices match the Pods that the Service selects?", ".axes")
            tab.shows("2 emulated nodes", ".axes")
            top = "document.querySelector('{}').getBoundingClientRect().top"
            assert tab.eval(f"{top.format('[aria-labelledby=h-explain]')} < {top.format('.axes')}")
            tab.send("Page.navigate", url="about:blank")
            tab.until("location.href === 'about:blank'")


def test_a_link_logs_in_once_and_its_secret_is_nowhere_afterwards(tab: Tab) -> None:
    with PlaneWithPage(controllers=False) as plane:
        link = plane.door.sessions.link()
        secret = link.partition("#login=")[2]
        tab.go(link)
        tab.shows("sliceplane-admin", ".account")
        tab.shows("1 Service", ".sums")
        assert tab.eval("location.hash") == "#/now"
        stored = (
            "JSON.stringify({...localStorage, ...sessionStorage}) + document.cookie + "
            "document.body.innerHTML"
        )
        assert secret not in tab.eval(stored)
        history = tab.send("Page.getNavigationHistory")["entries"]
        assert secret not in str([entry["url"] for entry in history])
        assert not [url for url in tab.requests if secret in url.partition("#")[0]], (
            "no server is sent a fragment"
        )
        tab.eval(
            "[...document.querySelectorAll('footer button')].find((one) => one.innerText === 'log "
            "out').click()"
        )
        tab.until("document.querySelector('[name=token]') !== null")
        tab.eval(f"location.hash = '#login={secret}'")
        tab.shows("this link was used already", "main .trouble")
        tab.until("document.querySelector('[name=token]') !== null && location.hash === '#/now'")
        tab.send("Page.navigate", url="about:blank")
        tab.until("location.href === 'about:blank'")
    assert [fault for fault in tab.faults if "status of 401" not in fault] == []
    tab.faults.clear()


def test_one_logs_in_and_out_and_in_again_after_a_restart(tab: Tab, tmp_path: Path) -> None:
    rows = "document.querySelectorAll('#services .rows [role=row]').length"

    def log_in(token: str) -> None:
        tab.until("document.querySelector('[name=token]') !== null")
        tab.eval(
            f"document.querySelector('[name=token]').value = {token!r}; "
            "document.querySelector('form.trace').requestSubmit()"
        )

    with PlaneWithPage(controllers=False, data_dir=tmp_path) as plane:
        plane.apply(service("default-web"))
        token, url = reader_of(plane, "default"), plane.url
        tab.go(f"{url}/ui/#/services")
        log_in("wrong")
        tab.shows("this token is not known here", "main .trouble")
        assert [fault for fault in tab.faults if "status of 401" not in fault] == []
        tab.faults.clear()
        tab.send("Page.setBypassCSP", enabled=True)
        tab.eval(AXE.read_text())
        assert violations(tab) == []
        log_in(token)
        tab.until(f"{rows} === 2")
        tab.shows("you may not list services in all namespaces; this is namespace default")
        tab.shows("as system:serviceaccount:default:reader", "footer")
        assert (
            tab.eval("document.cookie + JSON.stringify({...localStorage, ...sessionStorage})")
            == "{}"
        )
        tab.eval(
            "[...document.querySelectorAll('footer button')].find((one) => one.innerText === 'log "
            "out').click()"
        )
        tab.until(f"document.querySelector('[name=token]') !== null && {rows} === 0")
        log_in(token)
        tab.until(f"{rows} === 2")
    tab.shows("the server stops", "main .trouble")
    with PlaneWithPage(
        controllers=False, data_dir=tmp_path, port=int(url.rpartition(":")[2])
    ) as plane:
        log_in(token)
        tab.until(f"{rows} === 2")
        plane.advance(3600)
        tab.shows("the token is worth nothing any more", "main .trouble")
        assert tab.eval(rows) == 0
    tab.send("Page.navigate", url="about:blank")
    tab.until("location.href === 'about:blank'")
    tab.faults.clear()  # what it asked of a server that is not there
