"""Translations between HTTP and the service: parse, one call, reply."""
