"""Train and use LoRA adapters that play a story's world and its characters."""

__version__ = "0.1.0"
