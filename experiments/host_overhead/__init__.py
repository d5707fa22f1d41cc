"""Host overhead: how long a call takes to return to Python."""
