"""What the use cases of a service stand on: authentication, idempotency, the audit trail, the outbox."""
