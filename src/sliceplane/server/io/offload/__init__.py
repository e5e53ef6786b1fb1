"""Work of one request that would block the event loop: bodies and objects of more than
``OFFLOAD_BYTES``, and the answers that are built from them.

It is done by a few processes of our own (``pool``), since threads are not enough: one call into C
decodes 3 MB of tiny values in a quarter of a second, with a garbage collection in it that looks at
every object of the server, and keeps the interpreter's lock all the while. A process has a lock, a
heap and a collector of its own, a limit of its memory, and can be ended when it takes too long.

    app task - queue.admit(user) --> pool.run(job) ==pipe==> worker: job.run() ==pipe==> answer
                 fair, bounded                               no state, no loop

- ``jobs``: the requests, as values and as bytes; ``run`` is all that a worker does.
- ``worker``: the process.  It reads a job, answers, and ends when its pipe does.
- ``pool``: starts workers when there is work, ends them when they are idle or a job has no time
  left.
- ``service``: the interface to the rest of the server; its ``OffloadQueue`` runs one job at a time
  for each user, serves users round-robin, and bounds the waiting requests.
"""
