"""What a Service costs: KEP-0752's section "Estimation" as a tool.

- ``scale``: the KEP's formulas, for any number of Pods, Nodes and endpoints of a slice.
- ``kep``: the KEP's two sample cases, word for word.
- ``objects``: how large our objects really are, from the production engine, registry and encoders.
- ``report``: all of it as tables.
"""
