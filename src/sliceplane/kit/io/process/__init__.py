"""This process and its children: descriptors, memory, and who ends with whom."""
