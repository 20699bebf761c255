"""The ports: the only sockets, clocks and threads of the library.

``BlockingIO`` serves synchronous callers, ``AsyncIO`` asyncio, ``Replay`` tests and simulations. Nothing here knows a provider.
"""
