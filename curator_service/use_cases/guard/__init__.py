"""What is compared with the audit log before it is acted on."""
