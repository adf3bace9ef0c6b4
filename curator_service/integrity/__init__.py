"""Checks of the tables against the audit log, the modelers' countersignatures, restores."""
