"""Machine code of integer programs: dispatch, convolutions, moves, and their vector code."""
