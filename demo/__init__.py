"""The story that a newcomer runs: both parties on one machine, over real HTTP."""
