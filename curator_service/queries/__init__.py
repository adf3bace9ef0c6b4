"""A modeler's queries and the answers to them."""
