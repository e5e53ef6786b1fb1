"""The page of a cluster, for one person: served on loopback, with the rights of the kubeconfig, and read-only.

``server`` is the door (who may ask, what is said beside each answer), ``hub`` makes each view once for all of its
tabs, ``live`` follows the cluster, ``questions`` has the engines' answers worked out beside the loop.  The files of
``static`` are served as they stand, under a name that has their digest.

Promises: nothing but GET reaches the cluster; a page of another origin learns nothing and loads nothing; a tab that
does not read is closed, and costs no other tab anything.
Never: decides what is wrong with a cluster (``page`` shows what the engines answered).
"""
