"""What studies and tunings have spent."""
