"""One file per mechanism that makes Z from X, each with its claim and its argument."""
