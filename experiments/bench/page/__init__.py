"""The report as one HTML page, which needs neither a network nor a file beside it."""
