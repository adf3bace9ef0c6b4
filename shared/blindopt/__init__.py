"""What curator and modeler must agree on: words on the wire, errors, numerics, the audit log.

Everything here except ``blindopt.client`` is pure: no HTTP, no database, no
clock, no environment. Notation of the numerics, used in every module:

====================  ============  =======================================================
name                  shape         meaning
====================  ============  =======================================================
``candidates``  Z     (n, r)        what the modeler sees of the records, one row per record
``outcomes``    y     (t,)          released measurements, in the units of the measurement
``rows``              (t,)          index into Z of each outcome
``mean``, ``variance``  (n,)        posterior moments of f at every candidate
====================  ============  =======================================================
"""
