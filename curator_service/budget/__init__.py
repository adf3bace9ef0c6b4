"""What studies and files may spend, and what they have spent."""
