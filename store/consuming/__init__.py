"""Receiving under a lease, keeping it alive, answering, and hearing that there is something to receive."""
