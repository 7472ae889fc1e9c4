"""Agreement between judges, and reports."""
