"""Checks of the tables against the audit log, and the modelers' countersignatures, restores."""
