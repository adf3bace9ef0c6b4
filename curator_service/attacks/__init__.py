"""What an attacker gets from a release and from answers: one attack a file, each judged by the truth.

Everything here runs on the curator's side, for the owner's eyes. What it draws is thrown away, and its own
randomness is numpy's: it is the attacker's, never a mechanism's.
"""

from curator_service.attacks.trial import ATTACKS, on_release, on_trial

__all__ = ["ATTACKS", "on_release", "on_trial"]
