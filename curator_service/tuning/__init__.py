"""Private tuning of hyper-parameters: methods, scores, plans, jobs."""
