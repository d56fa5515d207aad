"""Convolutional networks on a CPU: a step costs what the surviving weights cost.

| stage | from → to |
|---|---|
| `plan.py` | a module → layers in order, with ReLUs and pools inside the layer before them |
| `planes.py` | layers and a batch size → memory of every value and of its gradient |
| `streams.py` | a mask → for each layer, where its survivors read; once per mask |
| `memory.py` | planes → values, gradients and what belongs to them |
| `program.py` | all of them → a table of rows, one per call of a kernel |
| `kernels.py`, `tile_walk.py`, `tiles.py`, `gradient_tiles.py`, `vectors.py` | rows → machine code |
| `network.py` | a program → a torch module whose only parameter is the vector of survivors |
"""
