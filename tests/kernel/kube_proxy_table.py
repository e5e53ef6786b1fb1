"""An empty nftables table of kube-proxy, for tests of the observer."""

from typing import Final

#: as kube-proxy 1.36 lays them out: endpoints in a map, or with session affinity in chains
TABLE: Final = """
table {family} kube-proxy {{
 map service-ips {{ type {address} . inet_proto . inet_service : verdict; }}
 map service-nodeports {{ type inet_proto . inet_service : verdict; }}
 chain services {{
  {family} daddr . meta l4proto . th dport vmap @service-ips
  fib daddr type local meta l4proto . th dport vmap @service-nodeports
 }}
 chain mark-for-masquerade {{ meta mark set mark or 0x4000; }}
 chain nat-output {{ type nat hook output priority -100; jump services; }}
 chain nat-prerouting {{ type nat hook prerouting priority -100; jump services; }}
}}
"""
