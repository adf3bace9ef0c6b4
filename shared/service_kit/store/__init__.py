"""Tables that both services have, and the database. Other SQL is only in the ``store`` of each service."""
