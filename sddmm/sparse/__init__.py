"""What S is: patterns, their indices, and the containers they come in."""
