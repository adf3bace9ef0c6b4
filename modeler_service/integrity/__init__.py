"""Checks of the tables against the audit log, and the replay of a run's choices."""
