"""The controller host: runs controller cores over shared informers and one client.

::

    informers --changes--> inbox --on_change--> core --take_work--> jobs (tasks) --writes--> client
                             ^                                        |
                             +------------------ Done ----------------+

Read ``host`` first, then ``runner`` (controller loop after controller loop), ``loop_shell`` (one
of them), ``informers`` and ``election``.
"""
