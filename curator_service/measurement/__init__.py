"""Where y comes from, and what is done to it before it leaves."""
