"""Long work for the owner, each job in a process of its own."""
