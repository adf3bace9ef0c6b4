"""Gaussian processes over finite candidates."""
