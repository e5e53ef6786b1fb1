"""What is decided about a write beyond its own object: is there a namespace, is the address free.

Promises: decisions against the newest staged objects; nothing is held by a write that fails.
Never: looks at who asks (that was authorization's part).
"""
