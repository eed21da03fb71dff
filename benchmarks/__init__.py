"""What README's figures come from, each one command."""
