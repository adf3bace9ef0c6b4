"""Sizes of statistical tests: larger where BLINDOPT_AUDIT_SCALE says so."""

import os


def scaled(n: int) -> int:
    return n * int(os.environ.get("BLINDOPT_AUDIT_SCALE", "1"))
