"""The operations as machine code: dispatch, convolutions, activations, moves, and their vector code."""
