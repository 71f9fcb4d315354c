"""Real data: certified costs, runs with audits, tables, words."""
