"""`attach`: methods on a user's own module and optimizer."""
