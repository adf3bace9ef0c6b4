"""The only rooms with SQL, apart from each service's own ``store``."""
