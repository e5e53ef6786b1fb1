"""The content of the page as data: view models of a cluster, and their changes.

``model`` has the Services, slices and Nodes from informers. ``views`` builds one model for each
view of the page from it and from the answers of ``explain``, ``drift``, ``trace`` and ``timeline``.
``tables`` are the rows of views by column. ``feed`` numbers models and encodes each change as a
message, so a reader loads a view once and then receives differences.

Promises: the page decides nothing that a command decides, too (a view shows the command's own
answer); equal input gives equal bytes; a feed keeps a bounded number of messages, however slow its
readers are. It never reads a cluster or a clock, and makes no markup; names and messages of other
writers stay text throughout.
"""
