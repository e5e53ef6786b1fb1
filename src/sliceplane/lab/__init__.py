"""Worlds that are only played: the simulator, what-if, the conformance kit, planes for tests."""
