"""An encoder from anywhere, judged by every protocol, and runs compared in a report."""
