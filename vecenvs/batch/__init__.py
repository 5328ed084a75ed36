"""Batches: leaves of spaces, columns, actions and infos as arrays. Nothing here knows workers."""
