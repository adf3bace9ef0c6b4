"""Gaussian processes over finite candidates.

The notation that all modules of this folder share:

==========  =================================  ============  ===========  ============================================
symbol      name                               shape         unit         meaning
==========  =================================  ============  ===========  ============================================
Z           ``Posterior(candidates)``          (n, r)        candidate    the release: one row for each record
n           ``Posterior.n``                    ()            1            number of candidates
t           ``Posterior.count``                ()            1            number of observations
y           ``Posterior.observe(outcome)``     ()            outcome      one observation of f, with noise
k           ``Kernel(variance)``               ()            outcome^2    prior variance of f, without the nugget
l           ``Kernel(lengthscale)``            ()            candidate    lengthscale of the kernel
m           ``Posterior(prior_mean)``          ()            outcome      prior mean of f
            ``Posterior.nugget``               ()            outcome^2    variance of f that each row has for itself
sigma_n^2   ``Posterior(noise_variance)``      ()            outcome^2    variance of the noise in y
mu_t        ``Posterior.mean``                 (n,)          outcome      posterior mean of f at each candidate
sigma_t^2   ``Posterior.variance``             (n,)          outcome^2    posterior variance of f at each candidate
L           ``Observations.factor``            (t, t)        outcome      Cholesky factor of the covariance of y
L^-1        ``Observations.inverse``           (t, t)        outcome^-1   its inverse
w           ``Observations.weights``           (t,)          1            L^-1 (y - m)
L^-T w      ``Observations.duals``             (t,)          outcome^-1   what each observation weighs in a mean
i           ``Observations.rows``              (t,)          1            candidates observed, as row numbers of Z
z_i         ``Observations.inputs``            (t, r)        candidate    candidates observed
            ``Observations.serials``           (t,)          1            numbers that no two observations share
            ``Candidates.extended``            (n, q + 2)    1            Z / l centred, of rank q; squared norm; one
v           ``Solution.whitened``              (m, t)        outcome      L^-1 k of m candidates
            ``Solution.mean``                  (m,)          outcome      their posterior means, solved for exactly
            ``Solution.variance``              (m,)          outcome^2    their posterior variances
            ``Solution.rows``                  (m,)          1            their row numbers in Z
beta_t      ``UpperConfidenceBound(weight)``   ()            1            exploration weight of a confidence bound
z_i         ``Deblurred.inputs``               (t, r)        candidate    candidates observed, known up to noise
y - m       ``Deblurred.outcomes``             (t,)          outcome      their observations, less the prior mean
sigma_i^2   ``Deblurred.noise``                (t,)          outcome^2    variance of the noise in each
N_i         ``Deblurred.spread``               (t,)          outcome^2    variance of f over the noise of each candidate
            ``Deblurred.is_refined``           (t,)          1            whether each lies at a place of less noise
C_t         ``ArmsPosterior.covariance``       (n, n)        outcome^2    posterior covariance of f at n arms
mu_t        ``ArmsPosterior.mean``             (n,)          outcome      posterior mean of f at each arm
N           ``ArmsPosterior.counts``           (n,)          1            plays of each arm
S           ``ArmsPosterior.sums``             (n,)          outcome      sum of the rewards of each arm
lambda      ``ArmsPosterior.lam``              ()            outcome^2    regulariser: variance of the noise
gamma_t     ``ArmsPosterior.gain``             ()            1            realised information gain, in nats
phi         ``Root.phi``                       (m, n)        outcome      m features of n arms
U           ``Root.whitened``                  (m, n)        1            the features times a root of their ridge
|U_x|^2     ``Root.squared_norms``             (n,)          1            squared norms of the columns of U
==========  =================================  ============  ===========  ============================================

A name with a parameter in parentheses is that parameter of a constructor or method; others are attributes.
"""
