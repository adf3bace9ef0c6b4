"""Measurements by people and by the owner's systems."""
