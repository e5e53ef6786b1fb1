"""The agent's own token and the kubeconfig's: which one is used when one is refused."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path

import pytest

from sliceplane.agent.io.token import OwnToken, _claims_of

pytestmark = pytest.mark.asyncio


def token(ends: int) -> str:
    claims = {"sub": "system:serviceaccount:default:sliceplane-agent-vm", "iat": 1_000, "exp": ends}
    return f"head.{base64.urlsafe_b64encode(json.dumps(claims).encode()).decode()}.signature"


def credentials(folder: Path, given: str, kept: str) -> OwnToken:
    (folder / "vm.token").write_text(kept)
    claims = _claims_of(given)
    assert claims is not None
    return OwnToken(given, claims, folder / "vm.token")


async def test_the_kept_one_is_used_if_it_lasts_longer_and_the_given_one_when_that_is_refused(
    tmp_path: Path,
) -> None:
    given, kept = token(2_000), token(3_000)
    own = credentials(tmp_path, given, kept)
    assert await own.authorization() == f"Bearer {kept}"
    assert await own.authorization(refused=f"Bearer {kept}") == f"Bearer {given}"
    assert await own.authorization() == f"Bearer {given}"
    assert await credentials(tmp_path, kept, given).authorization() == f"Bearer {kept}"


async def test_of_requests_that_are_refused_at_once_each_goes_on_with_the_good_one(
    tmp_path: Path,
) -> None:
    """The second one took the refused token up again, and the agent said nothing for a minute or
    more.
    """
    given, kept = token(2_000), token(3_000)
    own = credentials(tmp_path, given, kept)
    refused = [await own.authorization() for _ in range(3)]
    found = await asyncio.gather(*(own.authorization(refused=value) for value in refused))
    assert found == [f"Bearer {given}"] * 3
    assert await own.authorization() == f"Bearer {given}"
