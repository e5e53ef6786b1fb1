"""The page of a cluster, read-only: on loopback with the rights of a kubeconfig, or at our own
server for who logs in.

``viewer`` is what one person sees: ``live`` follows the cluster, ``hub`` makes each view once for
all of its tabs, ``questions`` has the engines' answers worked out beside the loop. ``server`` and
``login_door`` are the doors: who may ask, and with whose rights. The files of ``static`` are served
as they stand, under a name that has their digest.

Promises: nothing but GET reaches the cluster; a page of another origin learns nothing and loads
nothing; a tab that does not read is closed, and costs no other tab anything. Never: decides what is
wrong with a cluster (``page`` shows what the engines answered).
"""
