"""From rows to token ids and labels."""
