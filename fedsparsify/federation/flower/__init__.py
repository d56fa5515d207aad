"""The same methods and the same rounds over a network, carried by Flower: the only folder that imports `flwr`.

`server_app` and `client_app` are what a SuperLink and its SuperNodes run; `strategy` and `mod` bring a method into a
Flower app of yours.
"""
