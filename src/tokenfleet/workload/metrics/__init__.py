"""Engine metrics and other counts without single requests: what they tell, and what they cannot."""
