"""Files that people and programs exchange: npy matrices and CSV."""
