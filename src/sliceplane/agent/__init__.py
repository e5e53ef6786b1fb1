"""Endpoints outside of Kubernetes: processes of a VM, a laptop or bare metal as endpoints of a
Service.

``registration`` says what an agent keeps in a cluster: one Lease for each agent and namespace, one
EndpointSlice for each agent, Service and address family, owned by the Lease. ``checks`` judges the
process by its checks. ``agent.controller`` is the agent, which writes both;
``agent.endpoints_controller`` withdraws the slices of agents that fell silent, as ``judge`` tells
it, and of those that may not be (``refusals``).

Promises: two writers never want different things of one slice; no clock of another machine is read.
Never: opens a socket, knows a process (``agent.io`` does).
"""
