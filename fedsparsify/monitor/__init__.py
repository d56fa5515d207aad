"""What a running command shows to others: its health, metrics for Prometheus, and a live page. Nothing here writes."""
