"""Measurements of y, and what the curator does to them before release."""
