"""Predicts the effect of a change on a Service: the production engine and controllers run it on
virtual time.

- ``state``: a cluster as records, of a snapshot or of lists.
- ``changes``: the changes, parsed from ``KEY=VALUE`` and checked against the state.
- ``world``: the run: server, controllers, a simulated kubelet, and the events that watchers would
  receive.
- ``traffic``: the locations of clients, as measured and stored in a file.
- ``picture``: a Service at one moment: the distribution of connections
  (``consume.balancing.shares``), overload.
- ``prediction``: the whole question: the state before and after, and the cost of the change.
- ``assumptions``: the assumptions of an answer; ``text``: the answer for users; ``document``: for
  programs.
- ``estimate``: the same for a Service that does not exist yet, in a synthetic cluster.
- ``verify``: a prediction compared with a recording.

Everything that can be run is run, not computed. Never: claims more than was run; every answer
begins with its assumptions.
"""
