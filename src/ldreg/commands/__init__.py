"""What `ldreg inspect` and `ldreg bench` do, and how all commands speak of errors."""
