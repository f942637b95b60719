"""The paper's experiments, each as a function that returns what its table or figure shows."""
