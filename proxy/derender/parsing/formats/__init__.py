"""The formats: one short module per model family."""
