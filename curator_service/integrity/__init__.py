"""Checks of the tables against the audit log, and restores."""
