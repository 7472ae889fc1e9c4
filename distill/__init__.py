"""Data, rollouts, the teacher and the training of verifiers."""
