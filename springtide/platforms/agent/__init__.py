"""What every platform shares: the agent, role launch, reconciliation. Decision walk: its last stop before a
platform.
"""
