"""blindopt: what a data owner's curator and a vendor's modeler share.

- ``blindopt.wire``: the types of all requests and replies.
- ``blindopt.client``: HTTP clients of both services, for vendors, owners, measurers and data scientists.
- ``blindopt.gp``: Gaussian processes over finite candidates, with the notation table of the mathematics.
- ``blindopt.audit``: verification of the append-only audit logs of both services.
- ``blindopt.formats``: tables as CSV and NumPy files.
- ``blindopt.errors``: the errors of all of these.

Everything except ``blindopt.client`` is pure: no HTTP, no database, no clock, no environment.
"""
