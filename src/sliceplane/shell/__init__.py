"""The only place with sockets, tasks, threads, subprocesses, the wall clock and logs.

Each shell is a short dumb loop around a core: wait for an event or a deadline, feed the core, take
its actions, perform them, feed the results back.

Promises: environment errors are mapped once, with the original chained; every task started here ends here.
Never: decides policy.
"""
