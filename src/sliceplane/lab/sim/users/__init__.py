"""Users and machines that change a simulated cluster at random, and the documents that they write."""
