"""The command line that both services have."""
