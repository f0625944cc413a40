"""Streams that outlive their connection: their records, and how clients resume them."""
