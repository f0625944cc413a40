"""The routes of other APIs than OpenAI's chat and completions."""
