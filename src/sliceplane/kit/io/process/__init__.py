"""This process and its children: descriptors, memory, and joint ends."""
