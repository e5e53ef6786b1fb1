"""EndpointSlice policy: from Service, Pods and Nodes to the slices that must exist.

Promises: pure decisions and owned per-service state; equal input gives equal bytes.
Never: talks to an API server, knows a queue.
"""
