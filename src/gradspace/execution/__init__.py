"""Executions of an objective: from a whole score matrix, or at scale without one."""
