"""Objects that an ipvs proxy would load into a node's kernel, as text: addresses, virtual servers,
sets, rules.

A pure render: same objects, same bytes. It exists for those who run ipvs by other means, or
compare; this program does not run it, and what it renders is checked by golden files alone.

Never: runs a program.
"""
