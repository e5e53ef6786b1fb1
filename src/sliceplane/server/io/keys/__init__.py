"""Keys that the server makes and keeps: its certificate authority, and those of service account
tokens.
"""
