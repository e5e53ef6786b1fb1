"""The controller host: runs controller cores over shared informers and one client.

::

    informers --changes--> inbox --on_change--> core --take_work--> jobs (tasks) --writes--> client
                             ^                                        |
                             +------------------ Done ----------------+

Read ``host`` first, then ``runner`` (life after life), ``life`` (one of them), ``informers`` and ``election``.  A host
is used by ``embedded``, ``standalone`` and ``shadow``, with the controllers of ``catalogue``; ``freshness`` and
``monitoring`` say how it is.

Promises: a core is called from one place at a time; writes of a job go in order and stop at the first error;
a core that raises is logged and started again from scratch; after ``close`` no task is left.
Never: decides what is written; lets one controller's fault reach another.
"""

from sliceplane.watch.hosting.host import ControllerHost, HostStatus

__all__ = ["ControllerHost", "HostStatus"]
