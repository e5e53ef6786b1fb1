"""The commands of ``sliceplane``: parse flags, start shells, print for people."""
