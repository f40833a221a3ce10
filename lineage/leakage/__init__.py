"""What a model may not have known: rules, and the rows that break them."""
