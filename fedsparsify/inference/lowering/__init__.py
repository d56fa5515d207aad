"""From steps to a program: kernel choice, packed weights, rows."""
