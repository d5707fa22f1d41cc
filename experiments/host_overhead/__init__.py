"""Host overhead as an objective: how long a call takes to return to Python."""
