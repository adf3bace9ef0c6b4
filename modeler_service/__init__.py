"""The optimization vendor's side: sees candidates and answers, never a record."""
