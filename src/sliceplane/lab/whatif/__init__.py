"""Predicts the effect of a change on a Service: the production engine and controllers run it on
virtual time.

- ``state``: a cluster as records, of a snapshot or of lists.
- ``changes``: what is changed, from plain words; checked against the state.
- ``world``: the run: server, controllers and a kubelet that is played, and what watchers would be
  sent.
- ``traffic``: where clients are, as a file says that it was measured.
- ``picture``: a Service at one moment: where connections go (``consume.balancing.shares``),
  overload.
- ``prediction``: the whole question: before, after, what it takes.
- ``assumptions``: what it rests on; ``text``: the answer for people; ``document``: for programs.
- ``estimate``: the same for a Service that is not there yet, in a cluster that is made up.
- ``verify``: what was foreseen beside what a recording says that happened.

Nothing is reckoned that can be run. Never: says more than was run; what is assumed stands first in
every answer.
"""
