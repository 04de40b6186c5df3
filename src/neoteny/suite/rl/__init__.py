"""Agents: PPO, its loop and what it records."""
