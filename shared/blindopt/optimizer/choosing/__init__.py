"""RowChooser the rows of a run's next query."""
