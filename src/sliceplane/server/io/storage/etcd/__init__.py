"""Storage in etcd v3, shared by any number of API servers.

Promises: what is acknowledged is in etcd's log, on a majority of its disks; a batch is there whole
or not at all, in one transaction; what other servers wrote arrives in order, each batch once,
without a gap, whatever becomes of connections and members. Never: decides which server writes next or what
is run again (``server.store.replica``); touches keys outside its prefix.

``layout`` is what is stored, ``wire`` the messages, ``client`` the calls, ``feed`` the watch,
``backend`` the seam.
"""
