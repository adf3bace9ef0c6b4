"""What every request needs: who is asking, the stored reply to a repeated request, the audit trail, the outbox."""
