"""The data owner's side: holds the records, releases candidates, answers queries by row."""
