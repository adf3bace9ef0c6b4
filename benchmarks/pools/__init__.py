"""Pools that nobody tuned on: how soon the default finds a good record, beside BoTorch and random rows.

The rule, written before any run. A half of the pools chooses: a change of a default is taken if, over its pools,

* the mean of queries to the top 1 % falls by more than two standard errors, or is within them and the code is
  shorter;
* in no group of columns it is above 1.1 times BoTorch's by more than two standard errors;
* on no pool regret after 20 queries is above that of random rows by two standard errors;
* processor time stays at most 1/20 of BoTorch's.

40 runs a pool decide between two variants. The other half is reported: it runs once, after the last change of a
default, 20 runs a pool, and its figures are printed whatever they are.
"""
