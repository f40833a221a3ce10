"""How often each segment is worth refreshing, under a budget."""
