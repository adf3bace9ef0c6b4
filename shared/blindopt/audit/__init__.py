"""The audit log as pure functions: Merkle log, signed checkpoints, reconciliation of two parties' exports."""
