"""The flight recorder: what came to the controllers and when, in a ring of bytes, so that it can
happen again.

::

    host --changes, turns, answers--> Recorder --entries--> Ring --lines--> file --Reader--> replay | timeline | chrome

A core is a function of what it is told and when. So a log of its inputs, taken at the seam between
host and core, makes the same core decide the same again: a recording is an incident that can be
replayed, and what the cores decided is kept as a digest only, to compare with.

Read ``entries`` first (what is recorded), then ``recorder`` (how it is written);
``diagnose.timeline`` reads and replays. ``objects`` says in which form objects are
kept; ``redact`` keeps out what is not ours to keep.

Promises: the ring never holds more bytes than it was given; a segment is readable without those
before it; no content of a Secret or ConfigMap, no value of an environment variable and no
annotation of other programs is kept. Never: reads a clock, writes a file, or changes what a
controller is told.
"""
