"""Settings of a run that are given, for tests in which nothing is left to the defaults."""

from blindopt import wire

GIVEN = {"initial_rows": 1, "initial_design": "random", "repeats": "algorithm", "fit": None, "seed": 0}
"""With an algorithm beside them, a run chooses as its rule does, whatever the study is."""
GP_UCB = {"algorithm": wire.GpUcb(name="gp_ucb")} | GIVEN
