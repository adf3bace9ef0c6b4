"""What owners and auditors read: accounts, results, privacy reports."""
