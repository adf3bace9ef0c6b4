"""Noise and its calibration, secret randomness, privacy accounting, and guarantees in words."""
