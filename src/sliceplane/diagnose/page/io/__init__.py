"""The page of a cluster, read-only: on loopback with the rights of a kubeconfig, or at our own
server with a login.

``viewer`` is one user's view: ``live`` follows the cluster, ``hub`` builds each view once for all
of its tabs, ``questions`` computes the engines' answers in another thread. ``server`` and
``login_door`` authenticate and authorise requests, the latter by its ``login_sessions``. The files
of ``static`` are served under a name with their digest.

Promises: nothing but GET reaches the cluster; a page of another origin learns nothing and loads
nothing; a tab that does not read is closed, and costs no other tab anything. Never: finds faults of
a cluster (``page`` shows the engines' answers).
"""
