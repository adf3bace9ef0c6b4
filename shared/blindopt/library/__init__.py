"""Objects for people who work in Python: they hold a client of ``blindopt.client`` and what it returned."""
