"""Erasure of datasets, and what is kept for so many days."""
