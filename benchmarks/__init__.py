"""Speed and memory, each as a ratio against a baseline in the same run."""
