"""How claims are audited: the settings with their cases, and the runs."""
