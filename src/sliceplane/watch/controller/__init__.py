"""The shape of a controller: jobs, keys with delays, Events, expectations of own writes, leader
election.
"""
