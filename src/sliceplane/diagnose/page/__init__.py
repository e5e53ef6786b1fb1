"""What the page shows, as data: view models of a cluster, and what became of one since the last
look.

``model`` holds the Services, slices and Nodes that informers tell of; ``views`` makes of it, and of
the answers of ``explain``, ``drift``, ``trace`` and ``timeline``, one model for each view of the
page; ``tables`` are its rows by column; ``feed`` numbers models and says each change as a message,
so that a reader loads a view once and is told differences from then on.

Promises: nothing is decided here that a command decides, too (a view shows the command's own
answer); the same input gives the same bytes; a feed remembers a bounded number of messages, however
slow its readers are. Never: reads a cluster, looks at a clock, or makes markup; names and messages
of strangers are text on the whole way.
"""
