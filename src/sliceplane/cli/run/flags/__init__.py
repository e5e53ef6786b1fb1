"""The flags of commands that run a part of the plane, and what they mean."""
