"""From rows to a LoRA adapter."""
