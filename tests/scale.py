"""How large the statistical tests are: small by default, full in an audit."""

import os


def scaled(n: int) -> int:
    """``n`` times the environment's BLINDOPT_AUDIT_SCALE."""
    return n * int(os.environ.get("BLINDOPT_AUDIT_SCALE", "1"))
