"""Models without Python: the C sources that run what `fedsparsify export --to plan` writes, in wheels also compiled."""
