"""``--enable-admission-plugins``: what an operator may switch on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner
from tests.registry.conftest import Api

from sliceplane.api.errors import StatusError
from sliceplane.api.scheme import Services
from sliceplane.cli.main import main

ON = frozenset({"DenyServiceExternalIPs"})


def service(*external: str, **head: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "s", **head},
        "spec": {"ports": [{"port": 80}], "externalIPs": list(external)},
    }


def test_external_ips_are_allowed_unless_somebody_asks() -> None:
    outcome = Api().create(Services, service("203.0.113.1"))
    assert json.loads(outcome.body)["spec"]["externalIPs"] == ["203.0.113.1"]


def test_denied_as_upstream_denies() -> None:
    api = Api(admission_plugins=ON)
    with pytest.raises(StatusError) as caught:
        api.create(Services, service("203.0.113.1"))
    assert (caught.value.code, caught.value.reason) == (403, "Forbidden")
    assert (
        str(caught.value)
        == 'services "s" is forbidden: Use of external IPs is denied by admission control'
    )
    api.create(Services, service())
    with pytest.raises(StatusError, match="Use of external IPs is denied"):
        api.update(Services, "s", service("203.0.113.1"))
    with pytest.raises(StatusError, match="Use of external IPs is denied"):
        api.patch(Services, "s", {"spec": {"externalIPs": ["203.0.113.1"]}})


def test_those_that_are_there_stay_and_may_become_fewer() -> None:
    api = Api()
    api.create(Services, service("203.0.113.1", "203.0.113.2"))
    stricter = Api(admission_plugins=ON)
    stricter.store = api.store
    object.__setattr__(api.registry._core, "config", stricter.registry._core.config)
    api.patch(Services, "s", {"metadata": {"labels": {"a": "b"}}})
    api.patch(Services, "s", {"spec": {"externalIPs": ["203.0.113.2"]}})
    with pytest.raises(StatusError, match="Use of external IPs is denied"):
        api.patch(Services, "s", {"spec": {"externalIPs": ["203.0.113.2", "203.0.113.1"]}})
    api.patch(Services, "s", {"spec": {"externalIPs": None, "externalTrafficPolicy": None}})


def test_a_plugin_that_is_not_there_is_a_usage_error() -> None:
    ran = CliRunner().invoke(main, ["apiserver", "--enable-admission-plugins=NodeRestriction"])
    assert ran.exit_code == 64
    assert (
        "there is no admission plug-in 'NodeRestriction' here; there are DenyServiceExternalIPs,"
        in " ".join(ran.output.split())
    )
