"""Files of records: what their columns hold, and how they are read as numbers, a block of rows at a time."""
