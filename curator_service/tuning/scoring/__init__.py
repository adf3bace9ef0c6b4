"""Scores of hyper-parameters on a private validation set: bounded for each record, so that one record moves little."""
