"""What one command needs of a cluster or of a data folder: it reads, and holds nothing."""
