"""Delivery of notices to the operator's webhook."""
