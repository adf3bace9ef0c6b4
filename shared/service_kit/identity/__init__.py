"""Tokens and passwords: who a request comes from."""
