"""Runs: scheduler, workers, sessions and queries to a curator, stored records."""
