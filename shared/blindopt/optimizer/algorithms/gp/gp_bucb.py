"""GP-BUCB: batches of rows by hallucinated outcomes, Algorithm 1 of Desautels et al. (2014)."""

from blindopt.optimizer.algorithms.gp.gp_ucb import GpUcb


class GpBucb(GpUcb):
    """Chooses the rows of a batch one after another: mean of the answers so far, variance as if all were answered.

    A row of a batch maximizes mean + sqrt(beta_t) sd, where sd knows the rows chosen before it (an outcome as large as
    the posterior mean changes the variance and not the mean) and t counts all rows chosen by the algorithm. The
    factor exp(C) of Theorem 2 on the width is left out, as in the article's experiments: the regret bound holds
    with it only.
    """
