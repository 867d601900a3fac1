"""The layers on the native engine, the C++ library of csrc/.

``library`` loads it and mirrors its structs; ``backend`` decides which calls it takes; the other
modules hand tensors to it, one per entry point.
"""
