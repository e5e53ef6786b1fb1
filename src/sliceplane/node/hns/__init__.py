"""Requests that a proxy on a Windows node would send to the Host Compute Network, as JSON:
endpoints and load balancer policies.

A pure render: same objects, same bytes. There is no Windows here: what it renders is checked by
golden files alone.

Never: talks to a host.
"""
