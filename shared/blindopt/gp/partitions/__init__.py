"""Candidates in consecutive parts, each with what the posterior keeps of its rows; choices are those of the whole."""
