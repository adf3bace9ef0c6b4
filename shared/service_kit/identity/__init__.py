"""Tokens and passwords."""
