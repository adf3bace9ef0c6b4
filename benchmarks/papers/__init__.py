"""`make reproduce`: the papers' experiments, played by the product's own mechanisms and algorithms."""
