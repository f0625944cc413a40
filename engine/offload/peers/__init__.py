"""Blocks from another node, over TCP or NIXL: an engine that computes prompts serves the files of
its folder, and ranks of engines that answer ask for them by name, over TCP. With NIXL the answer is
where in the server's memory the file is, which the reader then reads.

Both ends know a secret, which is not sent: each proves it to the other by a keyed hash of what both
have drawn. After that, a question is a name's length (2 bytes, big-endian) and the name; an answer
the file's length (4 bytes, 0 for one that is not there) and the file.
"""
