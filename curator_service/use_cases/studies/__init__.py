"""Datasets, studies from draft to closed, releases, grants."""
