"""Speed and memory of ldreg beside other ways to do the same work, each measured in a process of its own."""
