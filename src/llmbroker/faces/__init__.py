"""Faces: what people and other programs meet. Each uses the rooms below; no face imports another."""
