"""Releases of studies: mechanisms, previews, attacks, forecasts, groups, sandboxes."""
