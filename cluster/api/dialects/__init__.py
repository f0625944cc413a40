"""Other APIs than OpenAI's chat: their requests are translated to a chat's, and its deltas to their
answers.
"""
