"""Files that people and programs exchange: npy matrices, CSV and other text."""
