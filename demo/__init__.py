"""The main job end to end: KEP-4444's manifest, applied with kubectl, ends as packets routed by the
kernel.

``python -m demo`` (or ``make demo``) tells each step as it does it:

* ``__main__``  the story
* ``plane``     starts ``sliceplane up`` and the node proxies, runs kubectl
* ``net``       network namespaces: a switch, two client nodes, one host per Pod
* ``agent``     runs a real HTTP server behind every Pod's address and says when it is ready
* ``backend``   that server
* ``client``    sends real requests and counts who answered
"""
