"""The node proxy as a process: informers in, rules of the kernel out, and what follows from
them.
"""
