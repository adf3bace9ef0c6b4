"""What a privacy level costs in quality: simulated on public rows, or on the records, for their owner alone.

The only room of the curator with seeded generators: they draw functions and a simulated modeler, which
never leave the curator. What a mechanism draws comes from ``privacy``, as in a release.
"""
