"""What a batch is: leaves, columns, actions and infos as arrays. Knows nothing of workers."""
