"""The kernel under a node proxy: one seam (``backend``), nftables and iptables behind it, sysctls,
namespaces.
"""
