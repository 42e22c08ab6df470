"""Proof that two passes share nothing in the prefix cache, before anything is measured.

A pass that finds the prompts of the one before it in the cache measures the cache. The recorded bodies carry a salt or a
nonce, or the engine is asked to forget; none of it is taken on trust (reference: engines §2, §10).
"""
