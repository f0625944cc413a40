"""Prompts that are computed by other engines than those that answer."""
