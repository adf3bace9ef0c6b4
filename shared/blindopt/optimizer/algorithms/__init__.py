"""One file per algorithm, behind the interface of ``algorithm``."""
