"""Noise, calibration, secret randomness, and what is promised in words."""
