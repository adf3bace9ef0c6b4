"""Algorithms over few arms, each of which may be queried many times."""
