"""A node proxy's access to the kernel: the interface of back ends (``backend``), nftables and
iptables, sysctls and network namespaces.
"""
