"""What dsx predicts for measured runs, which are priced in batches of one structure."""
