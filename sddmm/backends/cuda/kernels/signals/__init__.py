"""signals: words of 0 or 1 by which the GPUs of one host tell each other what they have done."""
