"""Tables that both services have, and the database. Other SQL is in the services' ``store`` and ``table``."""
