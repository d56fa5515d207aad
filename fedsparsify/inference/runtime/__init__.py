"""What runs a program: thread pool, sharing policy, native calls."""
