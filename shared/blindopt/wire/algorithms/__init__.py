"""Settings of algorithms: over a Gaussian process, bandits, fits, and the choice among them."""
