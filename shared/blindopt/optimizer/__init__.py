"""Which candidate to query next, as a pure function of settings, candidates and answers."""
