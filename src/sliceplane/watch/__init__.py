"""The list/watch state machine and the cache that it feeds, as a core without I/O.

Promises: after any history of lists, watches, errors and silence the cache equals what the server
last said, and handlers saw exactly the difference: a delete is never lost, not even in a relist.
How stale the cache may be is always known.
Never: opens a connection; keeps an object after the server said that it is gone.
"""
