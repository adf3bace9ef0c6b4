"""Studies from draft to closed, grants, caps, messages."""
