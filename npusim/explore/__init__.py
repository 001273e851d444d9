"""Experiments on the chain of load, compile, run: replays of recorded profiles."""
