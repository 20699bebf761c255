"""One honest broker between a program and language models."""
