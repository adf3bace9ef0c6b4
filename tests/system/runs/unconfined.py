"""The process that connects to a cluster, without its confinement: what a test compares it with."""

from modeler_service.engines.cluster import Program

PROGRAM = Program(confine=lambda readable: None)
