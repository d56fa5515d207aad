"""From a graph to fused steps with shapes."""
