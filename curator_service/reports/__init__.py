"""What owners and auditors read: accounts, overviews, results, privacy reports."""
