"""What `snapline bench` measures, one subject per file."""
