"""Algorithms over few arms, each of which may be asked many times."""
