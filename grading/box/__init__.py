"""Everything that enters the sandbox, and nothing else: this folder is all of the project that a worker can see.

It imports only the standard library, torch, numpy and IPython; no reference, test, oracle or seed may ever live here.
"""
