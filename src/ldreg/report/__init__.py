"""Tables, figures and pages from measured results."""
