"""What an objective does to a batch: weights, contributing samples, diagrams."""
