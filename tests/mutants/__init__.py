"""``make mutants``: does a test notice when a line of the library is wrong?

A mutant is the library with one small change, by an operator of cosmic-ray: a number one larger, ``<`` as
``<=``, ``+`` as ``-``. The tests that reach the changed function are run; a mutant that none of them notices
survives, and names a line whose result no test states.
"""
