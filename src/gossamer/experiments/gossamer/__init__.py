"""Gossamer's own tables, which no paper has."""
