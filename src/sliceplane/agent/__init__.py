"""Endpoints outside of Kubernetes: processes of a VM, a laptop or bare metal as endpoints of a
Service.

``registration`` defines the objects of an agent in a cluster: one Lease for each agent and
namespace, and one EndpointSlice for each agent, Service and address family, owned by the Lease.
``checks`` decides whether the process is healthy. ``agent.controller`` is the agent, which writes
both. ``agent.endpoints_controller`` withdraws the slices of silent agents (``judge``) and of agents
that may not serve (``refusals``).

Promises: two writers never fight over one slice; no clock of another machine is read. Never: opens
a socket, knows a process (``agent.io`` does).
"""
