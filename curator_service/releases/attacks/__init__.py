"""Attacks on a release and on answers, one per module, each judged by the true records.

They run at the curator, for the owner alone. What they draw is thrown away. Their own randomness is the attacker's and
comes from numpy; that of mechanisms never does.
"""
