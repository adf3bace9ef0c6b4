"""How large the randomized tests are: a factor for audits that may take longer."""

import os


def scaled(n: int) -> int:
    """``n``, times BLINDOPT_AUDIT_SCALE where that is set."""
    return n * int(os.environ.get("BLINDOPT_AUDIT_SCALE", "1"))
