"""What a run asks next."""
