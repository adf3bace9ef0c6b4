"""Runs: scheduling, workers, the exchange with a curator, and what is stored of it."""
