"""Sends requests to one address, each on a connection of its own, and counts who answered.

Run as a script, in a node's network namespace: ``client.py HOST PORT COUNT`` (or ``forever``: until
standard input closes). Prints one JSON object: {"answers": {name: count}, "failed": n, "errors":
[..]}.
"""

from __future__ import annotations

import collections
import http.client
import json
import select
import sys
import time

# on a busy machine a packet may be lost more than once, and is sent again after 1, 2 and 4 seconds
TIMEOUT_S = 20.0
PACE_S = 0.002  # between requests of an endless run: steady load, not a flood


def ask(host: str, port: int) -> str:
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/")
        response = connection.getresponse()
        body = response.read().decode()
        if response.status != 200:
            raise http.client.HTTPException(f"status {response.status}")
        return body
    finally:
        connection.close()


def wanted(count: str, sent: int) -> bool:
    if count != "forever":
        return sent < int(count)
    time.sleep(PACE_S)
    return not select.select([sys.stdin], [], [], 0)[0]


def main() -> None:
    host = sys.argv[1]
    port = int(sys.argv[2])
    count = sys.argv[3]
    answers: collections.Counter[str] = collections.Counter()
    errors: list[str] = []
    sent = 0
    while wanted(count, sent):
        sent += 1
        try:
            answers[ask(host, port)] += 1
        except (OSError, http.client.HTTPException) as error:
            errors.append(f"{type(error).__name__}: {error}")
    print(
        json.dumps(
            {"answers": dict(sorted(answers.items())), "failed": len(errors), "errors": errors[:5]}
        )
    )


if __name__ == "__main__":
    main()
