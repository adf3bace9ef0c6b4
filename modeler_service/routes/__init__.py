"""HTTP routes: each parses its request, makes one call, and replies."""
