"""Deletion without convexity: flows of densities, a network's cost, the drawing, the words."""
