"""What an edit saves over retraining: the points, their runs, the stated orders, the words."""
