"""Analysis of objectives and results: weights, COCOS, diagrams, and statistical comparison."""
