"""The objective `attention`: sparse attention, forward alone or as a step of training."""
