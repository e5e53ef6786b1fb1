"""Relays: lists and watches of a few resources from memory, in front of any API server.

A relay follows its parent with one list and one watch of each resource (``mirror``) and serves any
number of children; it keeps no state of its own, and makes no version. What it does not serve goes
to the parent. Parents may be relays, so relays form trees.
"""
