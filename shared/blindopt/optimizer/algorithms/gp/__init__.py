"""Gaussian-process algorithms over any number of candidates."""
