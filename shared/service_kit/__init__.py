"""What both services are built on: the ASGI app, tokens, the database, the log's storage.

It knows a server, a database and a clock; ``blindopt``, the library, never imports it (a contract in ``make check``).
Each image holds its own service, this package and the library.
"""
