"""The ground that both services stand on: the ASGI app, tokens, the database, the log's storage.

This is the one part of ``shared`` that knows a server, a database and a clock; the pure modules never
import it (a contract in ``make check``). It lives here because each image holds its own service and
``shared`` and nothing else, and because neither service may carry a second copy.
"""
