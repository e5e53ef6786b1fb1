"""What each link of the chain looks at: pure functions of a case, one module for each part of the
catalogue.

A check yields a finding for what it saw, with names and numbers in the sentence and the field in
the evidence; it is silent where it could not see. ``CHECKS`` of a module are in the order of the
catalogue, ``wants`` says what to read.
"""
