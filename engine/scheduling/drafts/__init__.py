"""Drafts of tokens, which a step checks beside the next one."""
