"""Tables that both services have, and the database. Other SQL is in the services' ``store`` and ``table``."""


class StoreFault(Exception):
    """The database refused a statement, which is an error of the program. Its text is the kind, never a value."""
